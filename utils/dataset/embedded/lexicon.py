"""The words of everyday travel."""

from utils.dataset.embedded.entry import Adjective, Deed, Entry, Person, Place, Thing, Verb, Weather

I = Person("私", "I", "I", "am", "have", "")  # noqa: E741
FAMILY = (
    Person("父", "my father", "he"),
    Person("母", "my mother", "she"),
    Person("兄", "my older brother", "he"),
    Person("姉", "my older sister", "she"),
    Person("弟", "my younger brother", "he"),
    Person("妹", "my younger sister", "she"),
    Person("祖母", "my grandmother", "she"),
)
FRIENDS = (
    Person("花子さん", "Hanako", "she"),
    Person("太郎さん", "Taro", "he"),
    Person("健さん", "Ken", "he"),
    Person("恵美さん", "Emi", "she"),
    Person("直美さん", "Naomi", "she"),
)
STRANGERS = (Person("先生", "the teacher"), Person("友達", "my friend"))  # of unknown gender

AREAS = (
    Place("祇園", "Gion", "in"),
    Place("嵐山", "Arashiyama", "in"),
    Place("宇治", "Uji", "in"),
    Place("大原", "Ohara", "in"),
    Place("鞍馬", "Kurama", "in"),
    Place("貴船", "Kibune", "in"),
    Place("先斗町", "Pontocho", "in"),
    Place("西陣", "Nishijin", "in"),
    Place("河原町", "Kawaramachi", "in"),
)
TOWN = (
    Place("駅", "the station", "at", "a station"),
    Place("空港", "the airport", "at", "an airport"),
    Place("公園", "the park", "at", "a park"),
    Place("市場", "the market", "at", "a market"),
    Place("ホテル", "the hotel", "at", "a hotel"),
    Place("旅館", "the inn", "at", "an inn"),
    Place("喫茶店", "the coffee shop", "at", "a coffee shop"),
)
OFFICES = (
    Place("図書館", "the library", "at", "a library"),
    Place("美術館", "the art museum", "at", "an art museum"),
    Place("病院", "the hospital", "at", "a hospital"),
    Place("銀行", "the bank", "at", "a bank"),
    Place("郵便局", "the post office", "at", "a post office"),
    Place("本屋", "the bookstore", "at", "a bookstore"),
)
LODGINGS = (Entry("旅館", "an inn"), Entry("ホテル", "a hotel"), Entry("民宿", "a guesthouse"))
SPOTS = (
    Entry("門の前", "in front of the gate of"),
    Entry("駐車場", "in the parking lot of"),
    Entry("入口", "at the entrance to"),
    Entry("裏", "behind"),
    Entry("近く", "near"),
)

RIDES = (Entry("バス", "bus"), Entry("電車", "train"), Entry("地下鉄", "subway"))
TRANSPORT = (
    Entry("バス", "by bus"),
    Entry("電車", "by train"),
    Entry("地下鉄", "by subway"),
    Entry("タクシー", "by taxi"),
    Entry("自転車", "by bicycle"),
    Entry("徒歩", "on foot"),
)

EAT = Verb("食べ", "eat", "食べて", "食べた", "ate", "eaten", "eating")
DRINK = Verb("飲み", "drink", "飲んで", "飲んだ", "drank", "drunk", "drinking")
BUY = Verb("買い", "buy", "買って", "買った", "bought", "bought", "buying")
READ = Verb("読み", "read", "読んで", "読んだ", "read", "read", "reading")
SEE = Verb("見", "see", "見て", "見た", "saw", "seen", "seeing")
VERBS = (EAT, DRINK, BUY, READ, SEE)

FOODS = (
    Deed("湯豆腐", "boiled tofu", EAT),
    Deed("そば", "soba", EAT),
    Deed("うどん", "udon", EAT),
    Deed("天ぷら", "tempura", EAT),
    Deed("寿司", "sushi", EAT),
    Deed("八つ橋", "yatsuhashi", EAT),
    Deed("団子", "rice dumplings", EAT),
    Deed("漬物", "pickles", EAT),
    Deed("アイスクリーム", "ice cream", EAT),
)
DRINKS = (
    Deed("抹茶", "matcha", DRINK),
    Deed("緑茶", "green tea", DRINK),
    Deed("紅茶", "black tea", DRINK),
    Deed("コーヒー", "coffee", DRINK),
    Deed("日本酒", "sake", DRINK),
    Deed("牛乳", "milk", DRINK),
)
THINGS = (
    Thing("扇子", "fan", "fans", "本"),
    Thing("傘", "umbrella", "umbrellas", "本", "an"),
    Thing("かんざし", "hairpin", "hairpins", "本"),
    Thing("ろうそく", "candle", "candles", "本"),
    Thing("絵葉書", "postcard", "postcards", "枚"),
    Thing("手ぬぐい", "towel", "towels", "枚"),
    Thing("皿", "plate", "plates", "枚"),
    Thing("お守り", "charm", "charms", "つ"),
    Thing("茶碗", "tea bowl", "tea bowls", "つ"),
    Thing("風鈴", "wind chime", "wind chimes", "つ"),
    Thing("人形", "doll", "dolls", "つ"),
)
PURCHASES = tuple(Deed(thing.ja, f"{thing.article} {thing.en}", BUY) for thing in THINGS)
READINGS = (
    Deed("新聞", "the newspaper", READ),
    Deed("小説", "a novel", READ),
    Deed("雑誌", "a magazine", READ),
    Deed("手紙", "a letter", READ),
)
VIEWS = (
    Deed("桜", "the cherry blossoms", SEE),
    Deed("紅葉", "the autumn leaves", SEE),
    Deed("月", "the moon", SEE),
    Deed("絵", "the paintings", SEE),
    Deed("日の出", "the sunrise", SEE),
    Deed("祭り", "the festival", SEE),
)
BEINGS = (
    Thing("猫", "cat", "cats", "匹"),
    Thing("犬", "dog", "dogs", "匹"),
    Thing("猿", "monkey", "monkeys", "匹"),
    Thing("僧侶", "monk", "monks", "人"),
    Thing("学生", "student", "students", "人"),
    Thing("子供", "child", "children", "人"),
    Thing("観光客", "tourist", "tourists", "人"),
    Thing("警官", "police officer", "police officers", "人"),
)

PAST_PERIODS = (Entry("先週", "last week"), Entry("先月", "last month"), Entry("去年", "last year"))
PAST = (
    *PAST_PERIODS,
    Entry("昨日", "yesterday"),
    Entry("おととい", "the day before yesterday"),
    Entry("今朝", "this morning"),
)
FUTURE = (
    Entry("明日", "tomorrow"),
    Entry("あさって", "the day after tomorrow"),
    Entry("今週末", "this weekend"),
    Entry("来週", "next week"),
    Entry("来月", "next month"),
    Entry("来年", "next year"),
)
ALWAYS = (Entry("毎日", "every day"), Entry("毎朝", "every morning"), Entry("毎晩", "every evening"))
SEASONS = (
    Entry("春", "in spring"),
    Entry("夏", "in summer"),
    Entry("秋", "in autumn"),
    Entry("冬", "in winter"),
    Entry("朝", "in the morning"),
    Entry("夜", "at night"),
)
WEEKDAYS = (
    Entry("月曜日", "on Monday"),
    Entry("火曜日", "on Tuesday"),
    Entry("水曜日", "on Wednesday"),
    Entry("木曜日", "on Thursday"),
    Entry("金曜日", "on Friday"),
    Entry("土曜日", "on Saturday"),
    Entry("日曜日", "on Sunday"),
)
MONTHS = (
    Entry("1月", "January"),
    Entry("2月", "February"),
    Entry("3月", "March"),
    Entry("4月", "April"),
    Entry("5月", "May"),
    Entry("6月", "June"),
    Entry("7月", "July"),
    Entry("8月", "August"),
    Entry("9月", "September"),
    Entry("10月", "October"),
    Entry("11月", "November"),
    Entry("12月", "December"),
)
DAYS = tuple(Entry(f"{day}日", str(day)) for day in (1, 2, 3, 5, 8, 10, 12, 15, 18, 20, 24, 28))
CLOCK = tuple(
    Entry(f"{half_ja}{hour}時{minute_ja}", f"{hour}{minute_en} {half_en}")
    for half_ja, half_en, hours in (("午前", "a.m.", (9, 10, 11)), ("午後", "p.m.", (1, 2, 3, 4, 5)))
    for hour in hours
    for minute_ja, minute_en in (("", ""), ("半", ":30"))
)
DURATIONS = (
    *(Entry(f"{minutes}分", f"{minutes} minutes") for minutes in (10, 15, 20, 30, 40, 50)),
    Entry("1時間", "one hour"),
    Entry("2時間", "two hours"),
)
NUMBERS = (  # from two, so that the English noun is always plural
    Entry("2", "two"),
    Entry("3", "three"),
    Entry("4", "four"),
    Entry("5", "five"),
    Entry("6", "six"),
    Entry("7", "seven"),
    Entry("8", "eight"),
    Entry("9", "nine"),
)
PRICES = tuple(Entry(f"{yen}円", f"{yen:,} yen") for yen in (400, 500, 600, 800, 1000, 1200, 1500, 2000, 3000, 5000))

SIZES = (
    Adjective("大きい", "large", "larger"),
    Adjective("小さい", "small", "smaller"),
    Adjective("古い", "old", "older"),
    Adjective("新しい", "new", "newer"),
    Adjective("美しい", "beautiful", "more beautiful"),
)
QUALITIES = (
    *SIZES,
    Adjective("軽い", "light", "lighter"),
    Adjective("重い", "heavy", "heavier"),
    Adjective("高い", "expensive", "more expensive"),
    Adjective("安い", "cheap", "cheaper"),
)
COLOURS = (Entry("赤い", "red"), Entry("青い", "blue"), Entry("白い", "white"), Entry("黒い", "black"))

WEATHER = (
    Weather("雨", "it rains", "雨が降っていた", "雨が降っていました", "雨が降ったら", "it was raining"),
    Weather("雪", "it snows", "雪が降っていた", "雪が降っていました", "雪が降ったら", "it was snowing"),
    Weather("寒", "it is cold", "寒かった", "寒かったです", "寒かったら", "it was cold"),
    Weather("暑", "it is hot", "暑かった", "暑かったです", "暑かったら", "it was hot"),
    Weather("晴れ", "it is sunny", "晴れていた", "晴れていました", "晴れたら", "it was sunny"),
    Weather(
        "風",
        "the wind is strong",
        "風が強かった",
        "風が強かったです",
        "風が強かったら",
        "the wind was strong",
    ),
)
HINDRANCES = (
    Entry("疲れていた", "was tired"),
    Entry("忙しかった", "was busy"),
    Entry("眠かった", "was sleepy"),
    Entry("病気だった", "was sick"),
    Entry("時間がなかった", "had no time"),
    Entry("お金がなかった", "had no money"),
)
CHANCES = (
    Entry("時間があれば", "I have time"),
    Entry("お金があれば", "I have money"),
    Entry("天気がよければ", "the weather is good"),
    Entry("忙しくなければ", "I am not busy"),
    Entry("疲れていなければ", "I am not tired"),
)
SIGNS = (
    Entry("この本", "this book"),
    Entry("あの看板", "that sign"),
    Entry("その新聞", "that newspaper"),
    Entry("僧侶", "the monk"),
    Entry("運転手", "the driver"),
)
