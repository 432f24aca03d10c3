"""Facts about Kyoto, its sights and the books written there, which a sentence may state or embed.

The years are the traditional ones that the temples and shrines themselves give. A fact is never varied: what is new
in the dev and test sets is the sentence around it.
"""

from dataclasses import dataclass

from utils.dataset.embedded.entry import Entry, Place


@dataclass(frozen=True)
class Sight(Place):
    """A temple, shrine, palace or castle; `built` selects 建てられた (built) over 創建された (founded)."""

    year: int = 0
    ward: str = ""
    founder: str = ""
    fame: str = ""
    built: bool = False


@dataclass(frozen=True)
class Fact(Entry):
    """One true predicate of a topic: `ja` is plain, and so fits before と, こと, そうです and the noun itself."""

    topic: Entry
    detail: str  # the item of the predicate: a year, an era, a person, a ward, what it is known for

    @property
    def items(self) -> tuple[str, ...]:
        """The two items of a fact; the pair of them is memorised, not combined."""
        return (self.topic.ja, self.detail)


NAMES = {
    "東山区": "Higashiyama Ward",
    "左京区": "Sakyo Ward",
    "右京区": "Ukyo Ward",
    "上京区": "Kamigyo Ward",
    "中京区": "Nakagyo Ward",
    "伏見区": "Fushimi Ward",
    "北区": "Kita Ward",
    "南区": "Minami Ward",
    "宇治": "Uji",
    "足利義満": "Ashikaga Yoshimitsu",
    "足利義政": "Ashikaga Yoshimasa",
    "足利尊氏": "Ashikaga Takauji",
    "徳川家康": "Tokugawa Ieyasu",
    "平清盛": "Taira no Kiyomori",
    "細川勝元": "Hosokawa Katsumoto",
    "藤原頼通": "Fujiwara no Yorimichi",
    "九条道家": "Kujo Michiie",
    "秦河勝": "Hata no Kawakatsu",
    "亀山法皇": "Emperor Kameyama",
    "宇多天皇": "Emperor Uda",
    "聖宝": "Shobo",
    "栄西": "Eisai",
    "ねね": "Nene",
    "石庭": "its rock garden",
    "舞台": "its wooden stage",
    "五重塔": "its five-story pagoda",
    "千本鳥居": "its thousands of torii",
    "観音像": "its statues of Kannon",
    "梅": "its plum blossoms",
    "桜": "its cherry blossoms",
    "紅葉": "its autumn leaves",
    "鳳凰堂": "its Phoenix Hall",
    "三門": "its great gate",
    "紫式部": "Murasaki Shikibu",
    "清少納言": "Sei Shonagon",
    "鴨長明": "Kamo no Chomei",
    "吉田兼好": "Yoshida Kenko",
    "紀貫之": "Ki no Tsurayuki",
    "川端康成": "Kawabata Yasunari",
    "芥川龍之介": "Akutagawa Ryunosuke",
}
ERAS = (  # the first year of each
    (592, "飛鳥時代", "the Asuka period"),
    (710, "奈良時代", "the Nara period"),
    (794, "平安時代", "the Heian period"),
    (1185, "鎌倉時代", "the Kamakura period"),
    (1336, "室町時代", "the Muromachi period"),
    (1573, "安土桃山時代", "the Azuchi-Momoyama period"),
    (1603, "江戸時代", "the Edo period"),
    (1868, "明治時代", "the Meiji period"),
    (1912, "大正時代", "the Taisho period"),
    (1926, "昭和時代", "the Showa period"),
)

SIGHTS = (
    Sight("清水寺", "Kiyomizu-dera", year=778, ward="東山区", fame="舞台"),
    Sight("金閣寺", "Kinkaku-ji", year=1397, ward="北区", founder="足利義満", built=True),
    Sight("銀閣寺", "Ginkaku-ji", year=1482, ward="左京区", founder="足利義政", built=True),
    Sight("龍安寺", "Ryoan-ji", year=1450, ward="右京区", founder="細川勝元", fame="石庭"),
    Sight("東寺", "To-ji", year=796, ward="南区", fame="五重塔"),
    Sight("三十三間堂", "Sanjusangen-do", year=1164, ward="東山区", founder="平清盛", fame="観音像", built=True),
    Sight("南禅寺", "Nanzen-ji", year=1291, ward="左京区", founder="亀山法皇", fame="三門"),
    Sight("天龍寺", "Tenryu-ji", year=1339, ward="右京区", founder="足利尊氏"),
    Sight("仁和寺", "Ninna-ji", year=888, ward="右京区", founder="宇多天皇", fame="桜"),
    Sight("醍醐寺", "Daigo-ji", year=874, ward="伏見区", founder="聖宝", fame="桜"),
    Sight("高台寺", "Kodai-ji", year=1606, ward="東山区", founder="ねね"),
    Sight("建仁寺", "Kennin-ji", year=1202, ward="東山区", founder="栄西"),
    Sight("東福寺", "Tofuku-ji", year=1236, ward="東山区", founder="九条道家", fame="紅葉"),
    Sight("相国寺", "Shokoku-ji", year=1382, ward="上京区", founder="足利義満"),
    Sight("広隆寺", "Koryu-ji", year=603, ward="右京区", founder="秦河勝"),
    Sight("平等院", "Byodo-in", year=1052, ward="宇治", founder="藤原頼通", fame="鳳凰堂"),
    Sight("伏見稲荷大社", "Fushimi Inari Shrine", year=711, ward="伏見区", fame="千本鳥居"),
    Sight("八坂神社", "Yasaka Shrine", year=656, ward="東山区"),
    Sight("北野天満宮", "Kitano Tenmangu", year=947, ward="上京区", fame="梅"),
    Sight("平安神宮", "Heian Shrine", year=1895, ward="左京区"),
    Sight("二条城", "Nijo Castle", year=1603, ward="中京区", founder="徳川家康", built=True),
)


def era(year: int) -> tuple[str, str]:
    """Return the period of Japanese history that a year belongs to, in both languages."""
    return next((ja, en) for first, ja, en in reversed(ERAS) if year >= first)


def sight_facts(sight: Sight) -> tuple[Fact, ...]:
    """Return all facts about a sight: when and by whom it was founded, where it is, what it is known for."""
    made_ja, made_en = ("建てられた", "built") if sight.built else ("創建された", "founded")
    era_ja, era_en = era(sight.year)
    facts = [
        Fact(f"{sight.year}年に{made_ja}", f"was {made_en} in {sight.year}", sight, f"{sight.year}年"),
        Fact(f"{era_ja}に{made_ja}", f"was {made_en} in {era_en}", sight, era_ja),
        Fact(f"{sight.ward}にある", f"is in {NAMES[sight.ward]}", sight, sight.ward),
    ]
    if sight.founder:
        by = f"was {made_en} by {NAMES[sight.founder]}"
        facts.append(Fact(f"{sight.founder}によって{made_ja}", by, sight, sight.founder))
    if sight.fame:
        facts.append(Fact(f"{sight.fame}で知られている", f"is known for {NAMES[sight.fame]}", sight, sight.fame))
    return tuple(facts)


def book_facts(ja: str, en: str, author: str, period: str) -> tuple[Fact, Fact]:
    """Return the facts about a book: who wrote it, and in which period."""
    book = Entry(ja, en)
    period_en = next(en for _, ja, en in ERAS if ja == period)
    return (
        Fact(f"{author}によって書かれた", f"was written by {NAMES[author]}", book, author),
        Fact(f"{period}に書かれた", f"was written in {period_en}", book, period),
    )


SIGHT_FACTS = tuple(fact for sight in SIGHTS for fact in sight_facts(sight))
BOOK_FACTS = (
    *book_facts("源氏物語", "The Tale of Genji", "紫式部", "平安時代"),
    *book_facts("枕草子", "The Pillow Book", "清少納言", "平安時代"),
    *book_facts("土佐日記", "The Tosa Diary", "紀貫之", "平安時代"),
    *book_facts("方丈記", "The Ten Foot Square Hut", "鴨長明", "鎌倉時代"),
    *book_facts("徒然草", "Essays in Idleness", "吉田兼好", "鎌倉時代"),
    *book_facts("羅生門", "Rashomon", "芥川龍之介", "大正時代"),
    *book_facts("古都", "The Old Capital", "川端康成", "昭和時代"),
)
FACTS = (*SIGHT_FACTS, *BOOK_FACTS)
MEMORISED = {frozenset(fact.items) for fact in FACTS}
