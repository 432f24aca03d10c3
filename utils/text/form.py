"""The forms of characters: one text may be written in several ways that look the same, or mean the same."""

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from unicodedata import combining, digit, is_normalized, lookup, name, normalize

# characters that show nothing: soft hyphen, joiners, direction marks, byte order mark, variation selectors, ...
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)


def composed(text: str) -> str:
    """Return the text in Unicode's composed form (UAX #15: が, not か and a mark), without invisible characters."""
    return INVISIBLE.sub("", text if is_normalized("NFC", text) else normalize("NFC", text))


_WIDE_DIGITS = {*"０１２３４５６７８９"}


def known_characters(tokens: Iterable[str]) -> set[str]:
    """Return the characters of a vocabulary, and the space.

    Full-width digits are known all or not at all: where one is missing, the others were rare, too, and a number of both
    kinds would be read as another number.
    """
    known = {" ", *"".join(tokens)}
    return known if known >= _WIDE_DIGITS else known - _WIDE_DIGITS


# What a character is read as where its own form is unknown: the first of these that is known.
_SIGNS = {
    "'’‘‚‛‹›′‵ʹʻʼ´`": "' ’",
    '"“”„‟«»″‶〝〞〟': '" ” “',
    "-−–‒‐‑": "- − – ‐",
    "—―─⸺": "— ― -",
    "・·•‧∙⋅●▪◦‣⁃": "・ · • -",
    "~〜～∼˜⁓〰": "〜 ～ ~",
    "×✕✖⨯": "× x",
    "÷⁄∕": "/",
    "±": "+/-",
    "⋯": "… ...",
    "○◯〇": "○ 〇 ◯",
    "¥": "￥",
    "º": "°",
    "©": "(C)",
    "®": "(R)",
    "™": "(TM)",
}
_LETTERS = dict(zip("ÆæŒœßẞÐðÞþı", ["AE", "ae", "OE", "oe", "ss", "SS", "D", "d", "Th", "th", "i"], strict=True))
# An old kanji and the usual one: of the lists of kanji for common use and for names (常用漢字表, 人名用漢字表), and in
# the last line those of family names (戸籍統一文字).
_KANJI = (
    "亞亜惡悪壓圧圍囲醫医爲為壹壱隱隠榮栄營営衞衛驛駅圓円鹽塩緣縁艷艶應応歐欧毆殴櫻桜奧奥橫横溫温穩穏假仮價価畫画會会"
    "繪絵壞壊懷懐槪概擴拡殼殻覺覚學学嶽岳樂楽渴渇罐缶卷巻陷陥勸勧寬寛關関歡歓觀観氣気歸帰龜亀僞偽戲戯犧犠舊旧據拠擧挙"
    "虛虚峽峡挾挟狹狭鄕郷曉暁區区驅駆勳勲薰薫徑径莖茎惠恵揭掲溪渓經経螢蛍輕軽繼継鷄鶏藝芸擊撃缺欠硏研縣県儉倹劍剣險険"
    "圈圏檢検獻献權権顯顕驗験嚴厳廣広效効恆恒黃黄鑛鉱號号國国黑黒碎砕濟済齋斎劑剤雜雑參参棧桟蠶蚕慘惨贊賛殘残絲糸齒歯"
    "兒児辭辞濕湿實実寫写釋釈壽寿收収從従澁渋獸獣縱縦肅粛處処緖緒敍叙將将稱称涉渉燒焼證証奬奨條条狀状乘乗淨浄剩剰疊畳"
    "繩縄壤壌孃嬢讓譲釀醸觸触囑嘱眞真寢寝愼慎盡尽圖図粹粋醉酔穗穂隨随髓髄樞枢數数瀨瀬聲声齊斉靜静竊窃攝摂專専淺浅戰戦"
    "踐践錢銭潛潜纖繊禪禅雙双壯壮爭争莊荘搜捜插挿巢巣曾曽瘦痩裝装總総騷騒增増藏蔵臟臓卽即屬属續続墮堕對対體体帶帯滯滞"
    "臺台瀧滝擇択澤沢擔担單単膽胆團団斷断彈弾遲遅癡痴蟲虫晝昼鑄鋳廳庁徵徴聽聴敕勅鎭鎮遞逓鐵鉄點点轉転傳伝燈灯當当黨党"
    "盜盗稻稲鬭闘德徳獨独讀読屆届貳弐惱悩腦脳霸覇拜拝廢廃賣売麥麦發発髮髪拔抜晚晩蠻蛮祕秘濱浜甁瓶拂払佛仏倂併竝並餠餅"
    "邊辺變変辨弁瓣弁辯弁步歩寶宝豐豊襃褒飜翻每毎萬万滿満麵麺默黙彌弥譯訳藥薬與与豫予餘余譽誉搖揺樣様謠謡來来賴頼亂乱"
    "覽覧龍竜兩両獵猟綠緑淚涙壘塁禮礼勵励戾戻靈霊齡齢曆暦歷歴戀恋鍊錬爐炉勞労郞郎樓楼錄録灣湾亙亘凛凜堯尭巖巌晄晃檜桧"
    "槇槙禰祢禱祷祿禄穰穣萠萌遙遥薗園駈駆嶋島盃杯冨富峯峰埜野凉涼"
    "髙高﨑崎嵜崎濵浜邉辺桒桑栁柳槗橋逹達曻昇靏鶴靎鶴柗松枩松釼剣劔剣嶌島舘館渕淵舩船昻昂淸清"
)
_READ_AS = {sign: spellings.split() for signs, spellings in _SIGNS.items() for sign in signs}
_READ_AS |= {form: [usual] for form, usual in (*_LETTERS.items(), *zip(_KANJI[::2], _KANJI[1::2], strict=True))}
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎"
_PART = re.compile(rf"(?s)[{_RAISED}]+|[{_LOWERED}]+|[ｳｶ-ﾄﾊ-ﾎﾜｦ][ﾞﾟ]|.")


@lru_cache(2**14)
def _spellings(part: str) -> list[str]:
    """Return what a character, a half-width kana with its mark, or a raised or lowered number may be read as."""
    if part in _READ_AS:
        return _READ_AS[part]
    plain = re.sub(r"\s", " ", normalize("NFKC", part))
    found = [plain, "".join(_READ_AS.get(character, character)[0] for character in plain)]  # ½: 1⁄2, 1/2
    return [*found, base] if len(part) == 1 and (base := base_form(part)) else found


def base_form(character: str) -> str:
    """Return a Latin letter without its marks, or the digit that a character stands for; "": it has none of these."""
    if name(character, "").startswith("LATIN"):
        with suppress(KeyError):  # of what has no name, as what the mark of ƛ is on
            return lookup(name(character).partition(" WITH ")[0])  # Ō: LATIN CAPITAL LETTER O WITH MACRON
    value = digit(character, None)
    return "" if value is None else str(value)  # ❶, ٣


def known_spelling(part: str, known: set[str]) -> str:
    """Return what a character, or a half-width kana with its mark, is read as: itself if known, or if nothing is."""
    if known.issuperset(part):
        return part
    return next((form for form in _spellings(part) if known.issuperset(form)), part)


def known_form(text: str, known: set[str]) -> str:
    """Write each unknown character in the way that is known, if there is one; a text of known ones stays as it is.

    Half-width kana and full-width letters become the usual ones only where their own form is unknown; so do tabs and
    other spaces, signs, letters with marks, and old kanji. A number beside another stays apart from it: 10² becomes
    10^2, 2½ 2(1/2), and 5① 5(1), or the character stays unknown.
    """
    if known.issuperset(text):
        return text
    text = composed(text)
    if known.issuperset(text):
        return text
    parts = _PART.findall(text)
    around = zip(["", *parts], parts, [*parts[1:], ""], strict=False)
    return "".join(part if part in known else _read(part, before, behind, known) for before, part, behind in around)


def _read(part: str, before: str, behind: str, known: set[str]) -> str:
    before, form = before[-1:], known_spelling(part, known)
    if combining(part[0]) and name(before or " ", "").startswith("LATIN"):
        return ""
    if form == part or part.isdecimal():
        return form
    joins, goes_on = before.isnumeric() and form[:1].isnumeric(), behind[:1].isnumeric() and form[-1:].isnumeric()
    if part[0] in _RAISED:
        is_power = before and not before.isalpha() and not before.isspace()
        form = "^" * bool(is_power) + form + " " * goes_on
    elif part[0] in _LOWERED:
        form = "_" * before.isnumeric() + form + " " * goes_on
    elif joins or goes_on:
        form = f"({form})"  # models drop a space
    return form if known.issuperset(form) else part
