"""The constructions: a pair of templates each, and the entries that may fill their slots.

A template names a form of an entry (`{who.ja}`, `{deed.verb.past}`), so that both languages inflect from one lexicon.
The Japanese is polite, its verb ends the clause, and relative clauses, reasons and conditions come before what they
modify; the English puts all of these elsewhere.
"""

from utils.dataset.embedded import kyoto, lexicon
from utils.dataset.embedded.construction import Construction
from utils.dataset.embedded.entry import Deed, Entry


def is_older(one: kyoto.Sight, other: kyoto.Sight) -> bool:
    """Return whether one sight is older than the other, so that only the truth is stated."""
    return one.year < other.year


def are_alike(_: Entry, one: Deed, other: Deed) -> bool:
    """Return whether food is compared with food, or drink with drink."""
    return one.verb is other.verb


OTHERS = (*lexicon.FAMILY, *lexicon.FRIENDS, *lexicon.STRANGERS)  # everyone but the speaker
EVERYONE = (lexicon.I, *OTHERS)
GENDERED = (lexicon.I, *lexicon.FAMILY, *lexicon.FRIENDS)  # whose pronoun is known
ASKED = (*lexicon.FRIENDS, *lexicon.STRANGERS)
SIGHTS = kyoto.SIGHTS
VISITED = (*lexicon.AREAS, *SIGHTS)
PLACES = (*VISITED, *lexicon.TOWN, *lexicon.OFFICES)
EATERIES = (*lexicon.AREAS, *lexicon.TOWN)
MEALS = (*lexicon.FOODS, *lexicon.DRINKS)
DEEDS = (*MEALS, *lexicon.PURCHASES)
PASTIMES = (*MEALS, *lexicon.READINGS)
THINGS = lexicon.THINGS

FACT_SENTENCES = (
    Construction(
        "said",
        "{who.ja}は{fact.topic.ja}が{fact.ja}と言っていました。",
        "{who.en} said that {fact.topic.en} {fact.en}.",
        {"who": OTHERS, "fact": kyoto.FACTS},
    ),
    Construction(
        "knows",
        "{who.ja}は{fact.topic.ja}が{fact.ja}ことを知っています。",
        "{who.en} know{who.s} that {fact.topic.en} {fact.en}.",
        {"who": EVERYONE, "fact": kyoto.FACTS},
    ),
    Construction(
        "did_not_know",
        "{who.ja}は{fact.topic.ja}が{fact.ja}ことを知りませんでした。",
        "{who.en} did not know that {fact.topic.en} {fact.en}.",
        {"who": EVERYONE, "fact": kyoto.FACTS},
    ),
    Construction(
        "does_know",
        "{who.ja}は{fact.topic.ja}が{fact.ja}ことを知っていますか。",
        "Does {who.en} know that {fact.topic.en} {fact.en}?",
        {"who": ASKED, "fact": kyoto.FACTS},
    ),
    Construction(
        "according_to",
        "{sign.ja}によると、{fact.topic.ja}は{fact.ja}そうです。",
        "According to {sign.en}, {fact.topic.en} {fact.en}.",
        {"sign": (*lexicon.SIGNS, *OTHERS), "fact": kyoto.FACTS},
    ),
    Construction(
        "visited_which",
        "{who.ja}は{time.ja}、{fact.ja}{fact.topic.ja}を訪れました。",
        "{time.en} {who.en} visited {fact.topic.en}, which {fact.en}.",
        {"who": EVERYONE, "time": lexicon.PAST, "fact": kyoto.SIGHT_FACTS},
    ),
    Construction(
        "read_which",
        "{who.ja}は{time.ja}、{fact.ja}{fact.topic.ja}を読みました。",
        "{time.en} {who.en} read {fact.topic.en}, which {fact.en}.",
        {"who": EVERYONE, "time": lexicon.PAST, "fact": kyoto.BOOK_FACTS},
    ),
    Construction(
        "older",
        "{one.ja}は{other.ja}より古いです。",
        "{one.en} is older than {other.en}.",
        {"one": SIGHTS, "other": SIGHTS},
        is_older,
    ),
)

JOURNEYS = (
    Construction(
        "went",
        "{who.ja}は{time.ja}{ride.ja}で{place.ja}に行きました。",
        "{who.en} went to {place.en} {ride.en} {time.en}.",
        {"who": EVERYONE, "time": lexicon.PAST, "ride": lexicon.TRANSPORT, "place": PLACES},
    ),
    Construction(
        "plans",
        "{who.ja}は{time.ja}{ride.ja}で{place.ja}に行く予定です。",
        "{who.en} {who.be} planning to go to {place.en} {ride.en} {time.en}.",
        {"who": EVERYONE, "time": lexicon.FUTURE, "ride": lexicon.TRANSPORT, "place": PLACES},
    ),
    Construction(
        "how_long",
        "{start.ja}から{place.ja}まで{ride.ja}でどのくらいかかりますか。",
        "How long does it take from {start.en} to {place.en} {ride.en}?",
        {"start": PLACES, "place": PLACES, "ride": lexicon.TRANSPORT},
    ),
    Construction(
        "takes",
        "{start.ja}から{place.ja}まで{ride.ja}で{time.ja}かかります。",
        "It takes {time.en} from {start.en} to {place.en} {ride.en}.",
        {
            "start": lexicon.TOWN,
            "place": (*lexicon.OFFICES, *lexicon.TOWN),
            "ride": lexicon.TRANSPORT,
            "time": lexicon.DURATIONS,
        },
    ),
    Construction(
        "meet",
        "{day.ja}の{clock.ja}に{place.ja}の前で会いましょう。",
        "Let's meet in front of {place.en} at {clock.en} {day.en}.",
        {
            "day": lexicon.WEEKDAYS,
            "clock": lexicon.CLOCK,
            "place": (*SIGHTS, *lexicon.TOWN, *lexicon.OFFICES),
        },
    ),
    Construction(
        "must_go_by",
        "{who.ja}は{clock.ja}までに{place.ja}に行かなければなりません。",
        "{who.en} must go to {place.en} by {clock.en}",  # the full stop of p.m. also ends the sentence
        {"who": EVERYONE, "clock": lexicon.CLOCK, "place": PLACES},
    ),
    Construction(
        "comes_on",
        "{who.ja}は{month.ja}{day.ja}に{place.ja}に来ます。",
        "{who.en} will come to {place.en} on {month.en} {day.en}.",
        {"who": OTHERS, "month": lexicon.MONTHS, "day": lexicon.DAYS, "place": lexicon.AREAS},
    ),
    Construction(
        "stayed",
        "{who.ja}は{time.ja}{place.ja}の{lodging.ja}に{number.ja}泊しました。",
        "{who.en} stayed at {lodging.en} in {place.en} for {number.en} nights {time.en}.",
        {
            "who": EVERYONE,
            "time": lexicon.PAST_PERIODS,
            "place": lexicon.AREAS,
            "lodging": lexicon.LODGINGS,
            "number": lexicon.NUMBERS[:4],
        },
    ),
)

DEED_SENTENCES = (
    Construction(
        "has_done",
        "{who.ja}は{place.ja}で{deed.ta}ことがあります。",
        "{who.en} {who.have} {deed.verb.participle} {deed.en} {place.where}.",
        {"who": EVERYONE, "place": EATERIES, "deed": DEEDS},
    ),
    Construction(
        "has_never_done",
        "{who.ja}は{place.ja}で{deed.ta}ことがありません。",
        "{who.en} {who.have} never {deed.verb.participle} {deed.en} {place.where}.",
        {"who": EVERYONE, "place": EATERIES, "deed": DEEDS},
    ),
    Construction(
        "is_doing",
        "{who.ja}は今{place.ja}で{deed.te}います。",
        "{who.en} {who.be} {deed.verb.gerund} {deed.en} {place.where} now.",
        {"who": EVERYONE, "place": EATERIES, "deed": PASTIMES},
    ),
    Construction(
        "does_every",
        "{who.ja}は{time.ja}{place.ja}で{deed.stem}ます。",
        "{who.en} {deed.verb.en}{who.s} {deed.en} {place.where} {time.en}.",
        {"who": EVERYONE, "time": lexicon.ALWAYS, "place": EATERIES, "deed": PASTIMES},
    ),
    Construction(
        "went_to_do",
        "{who.ja}は{time.ja}{deed.stem}に{place.ja}に行きました。",
        "{who.en} went to {place.en} to {deed.verb.en} {deed.en} {time.en}.",
        {"who": EVERYONE, "time": lexicon.PAST, "place": EATERIES, "deed": DEEDS},
    ),
    Construction(
        "saw_at",
        "{who.ja}は{time.ja}{place.ja}で{deed.stem}ました。",
        "{who.en} saw {deed.en} {place.where} {time.en}.",
        {"who": EVERYONE, "time": lexicon.PAST, "place": SIGHTS, "deed": lexicon.VIEWS},
    ),
    Construction(
        "what_question",
        "{who.ja}は{time.ja}{place.ja}で何を{verb.ja}ましたか。",
        "What did {who.en} {verb.en} {place.where} {time.en}?",
        {"who": ASKED, "time": lexicon.PAST, "place": (*VISITED, *lexicon.TOWN), "verb": lexicon.VERBS},
    ),
    Construction(
        "invite",
        "{time.ja}一緒に{place.ja}で{deed.stem}ませんか。",
        "Would you like to {deed.verb.en} {deed.en} with me {place.where} {time.en}?",
        {"time": lexicon.FUTURE, "place": EATERIES, "deed": MEALS},
    ),
    Construction(
        "may_i",
        "{place.ja}で{deed.te}もいいですか。",
        "May I {deed.verb.en} {deed.en} {place.where}?",
        {"place": (*EATERIES, *lexicon.OFFICES), "deed": PASTIMES},
    ),
    Construction(
        "must_not",
        "{who.ja}は{place.ja}で{deed.te}はいけません。",
        "{who.en} must not {deed.verb.en} {deed.en} {place.where}.",
        {"who": EVERYONE, "place": (*lexicon.TOWN, *lexicon.OFFICES), "deed": MEALS},
    ),
    Construction(
        "after",
        "{who.ja}は{sight.ja}を訪れたあと、{place.ja}で{deed.stem}ました。",
        "{who.en} {deed.verb.past} {deed.en} {place.where} after visiting {sight.en}.",
        {"who": EVERYONE, "sight": SIGHTS, "place": EATERIES, "deed": DEEDS},
    ),
    Construction(
        "prefers",
        "{who.ja}は{one.ja}より{other.ja}のほうが好きです。",
        "{who.en} like{who.s} {other.en} better than {one.en}.",
        {"who": EVERYONE, "one": MEALS, "other": MEALS},
        are_alike,
    ),
    Construction(
        "likes_in",
        "{who.ja}は{season.ja}の{place.ja}が好きです。",
        "{who.en} like{who.s} {place.en} {season.en}.",
        {"who": EVERYONE, "season": lexicon.SEASONS, "place": VISITED},
    ),
)

COUNTING = (
    Construction(
        "price",
        "この{size.ja}{colour.ja}{thing.ja}は{price.ja}です。",
        "This {size.en} {colour.en} {thing.en} costs {price.en}.",
        {"size": lexicon.SIZES, "colour": lexicon.COLOURS, "thing": THINGS, "price": lexicon.PRICES},
    ),
    Construction(
        "compare",
        "この{one.ja}はあの{other.ja}より{adjective.ja}です。",
        "This {one.en} is {adjective.more} than that {other.en}.",
        {"one": THINGS, "other": THINGS, "adjective": lexicon.QUALITIES},
    ),
    Construction(
        "which_i_bought",
        "{who.ja}が{time.ja}{place.ja}で買った{thing.ja}は{adjective.ja}です。",
        "The {thing.en} that {who.en} bought {place.where} {time.en} is {adjective.en}.",
        {
            "who": EVERYONE,
            "time": lexicon.PAST,
            "place": EATERIES,
            "thing": THINGS,
            "adjective": lexicon.QUALITIES,
        },
    ),
    Construction(
        "gave",
        "{who.ja}は{place.ja}で買った{thing.ja}を{friend.ja}にあげました。",
        "{who.en} gave {friend.en} the {thing.en} that {who.pronoun} bought {place.where}.",
        {"who": GENDERED, "place": EATERIES, "thing": THINGS, "friend": ASKED},
    ),
    Construction(
        "tickets",
        "{place.ja}までの{ride.ja}の切符を{number.ja}枚ください。",
        "{number.en} {ride.en} tickets to {place.en}, please.",
        {"place": PLACES, "ride": lexicon.RIDES, "number": lexicon.NUMBERS},
    ),
    Construction(
        "bought_number",
        "{who.ja}は{place.ja}で{thing.ja}を{number.ja}{thing.counter}買いました。",
        "{who.en} bought {number.en} {thing.many} {place.where}.",
        {"who": EVERYONE, "place": EATERIES, "thing": THINGS, "number": lexicon.NUMBERS},
    ),
    Construction(
        "drank_cups",
        "{who.ja}は{place.ja}で{drink.ja}を{number.ja}杯飲みました。",
        "{who.en} drank {number.en} cups of {drink.en} {place.where}.",
        {"who": EVERYONE, "place": EATERIES, "drink": lexicon.DRINKS, "number": lexicon.NUMBERS},
    ),
    Construction(
        "there_are",
        "{place.ja}の{spot.ja}に{being.ja}が{number.ja}{being.counter}います。",
        "There are {number.en} {being.many} {spot.en} {place.en}.",
        {"place": SIGHTS, "spot": lexicon.SPOTS, "being": lexicon.BEINGS, "number": lexicon.NUMBERS},
    ),
    Construction(
        "is_there_near",
        "{place.ja}の近くに{other.ja}はありますか。",
        "Is there {other.a} near {place.en}?",
        {"place": PLACES, "other": (*lexicon.TOWN, *lexicon.OFFICES)},
    ),
)

REASONS = (
    Construction(
        "because_weather",
        "{weather.was}ので、{who.ja}は{ride.ja}で{place.ja}に行きました。",
        "{who.en} went to {place.en} {ride.en} because {weather.was_en}.",
        {"weather": lexicon.WEATHER, "who": EVERYONE, "ride": lexicon.TRANSPORT, "place": PLACES},
    ),
    Construction(
        "because_hindered",
        "{who.ja}は{reason.ja}ので、{place.ja}に行きませんでした。",
        "{who.en} did not go to {place.en} because {who.pronoun} {reason.en}.",
        {"who": GENDERED, "reason": lexicon.HINDRANCES, "place": PLACES},
    ),
    Construction(
        "when_arrived",
        "{who.ja}が{place.ja}に着いたとき、{weather.was_polite}。",
        "{weather.was_en} when {who.en} arrived {place.where}.",
        {"who": EVERYONE, "place": PLACES, "weather": lexicon.WEATHER},
    ),
    Construction(
        "if_weather",
        "{weather.tara}、{ride.ja}で{place.ja}に行きましょう。",
        "If {weather.en}, let's go to {place.en} {ride.en}.",
        {"weather": lexicon.WEATHER, "ride": lexicon.TRANSPORT, "place": PLACES},
    ),
    Construction(
        "if_chance",
        "{chance.ja}、{place.ja}で{deed.stem}たいです。",
        "If {chance.en}, I want to {deed.verb.en} {deed.en} {place.where}.",
        {"chance": lexicon.CHANCES, "place": SIGHTS, "deed": lexicon.VIEWS},
    ),
)

CONSTRUCTIONS = (*FACT_SENTENCES, *JOURNEYS, *DEED_SENTENCES, *COUNTING, *REASONS)
