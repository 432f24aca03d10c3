"""The embedded corpus: a grammar of Kyoto and everyday travel that generates 21,000 Japanese-English sentence pairs.

There is nothing to download. `entry.py` defines what a word carries, `lexicon.py` lists the words, `kyoto.py` the
facts, `construction.py` and `grammar.py` turn them into sentences, and `generate.py` draws the corpus and splits it:

- Each Japanese sentence has exactly one English translation, and vice versa. What the English must express and the
  Japanese leaves out (articles, number, gender, prepositions) is fixed once for each entry or construction.
- What is said about Kyoto is true: a fact is never varied, only put into other sentences. What people do is invented.
- The test set is compositional: all of its words and constructions occur in train, but each sentence joins two items
  that never meet there. `generate.py` explains what an item is.

The constructions, with an example of each:

    said              太郎さんは北野天満宮が平安時代に創建されたと言っていました。
                      Taro said that Kitano Tenmangu was founded in the Heian period.
    knows             父は東福寺が九条道家によって創建されたことを知っています。
                      My father knows that Tofuku-ji was founded by Kujo Michiie.
    did_not_know      直美さんは南禅寺が左京区にあることを知りませんでした。
                      Naomi did not know that Nanzen-ji is in Sakyo Ward.
    does_know         恵美さんは広隆寺が右京区にあることを知っていますか。
                      Does Emi know that Koryu-ji is in Ukyo Ward?
    according_to      僧侶によると、清水寺は778年に創建されたそうです。
                      According to the monk, Kiyomizu-dera was founded in 778.
    visited_which     父は去年、足利義満によって建てられた金閣寺を訪れました。
                      Last year my father visited Kinkaku-ji, which was built by Ashikaga Yoshimitsu.
    read_which        姉は先月、紫式部によって書かれた源氏物語を読みました。
                      Last month my older sister read The Tale of Genji, which was written by Murasaki Shikibu.
    older             北野天満宮は龍安寺より古いです。
                      Kitano Tenmangu is older than Ryoan-ji.

    went              太郎さんは先週バスで旅館に行きました。
                      Taro went to the inn by bus last week.
    plans             弟は来月徒歩で図書館に行く予定です。
                      My younger brother is planning to go to the library on foot next month.
    how_long          仁和寺から東寺まで徒歩でどのくらいかかりますか。
                      How long does it take from Ninna-ji to To-ji on foot?
    takes             ホテルから空港までバスで50分かかります。
                      It takes 50 minutes from the hotel to the airport by bus.
    meet              月曜日の午前9時に銀行の前で会いましょう。
                      Let's meet in front of the bank at 9 a.m. on Monday.
    must_go_by        妹は午前10時半までに金閣寺に行かなければなりません。
                      My younger sister must go to Kinkaku-ji by 10:30 a.m.
    comes_on          太郎さんは4月5日に祇園に来ます。
                      Taro will come to Gion on April 5.
    stayed            健さんは先週祇園の民宿に4泊しました。
                      Ken stayed at a guesthouse in Gion for four nights last week.

    has_done          先生は河原町で手ぬぐいを買ったことがあります。
                      The teacher has bought a towel in Kawaramachi.
    has_never_done    兄は嵐山で人形を買ったことがありません。
                      My older brother has never bought a doll in Arashiyama.
    is_doing          花子さんは今大原でそばを食べています。
                      Hanako is eating soba in Ohara now.
    does_every        兄は毎晩先斗町で緑茶を飲みます。
                      My older brother drinks green tea in Pontocho every evening.
    went_to_do        太郎さんは昨日お守りを買いに鞍馬に行きました。
                      Taro went to Kurama to buy a charm yesterday.
    saw_at            父は去年広隆寺で桜を見ました。
                      My father saw the cherry blossoms at Koryu-ji last year.
    what_question     友達は今朝大原で何を買いましたか。
                      What did my friend buy in Ohara this morning?
    invite            来月一緒にホテルで緑茶を飲みませんか。
                      Would you like to drink green tea with me at the hotel next month?
    may_i             西陣で漬物を食べてもいいですか。
                      May I eat pickles in Nishijin?
    must_not          弟は図書館でコーヒーを飲んではいけません。
                      My younger brother must not drink coffee at the library.
    after             姉は仁和寺を訪れたあと、ホテルで紅茶を飲みました。
                      My older sister drank black tea at the hotel after visiting Ninna-ji.
    prefers           直美さんはうどんより天ぷらのほうが好きです。
                      Naomi likes tempura better than udon.
    likes_in          花子さんは冬の銀閣寺が好きです。
                      Hanako likes Ginkaku-ji in winter.

    price             この新しい青い皿は3000円です。
                      This new blue plate costs 3,000 yen.
    compare           この扇子はあの傘より大きいです。
                      This fan is larger than that umbrella.
    which_i_bought    父が先週祇園で買った手ぬぐいは美しいです。
                      The towel that my father bought in Gion last week is beautiful.
    gave              父は宇治で買った風鈴を直美さんにあげました。
                      My father gave Naomi the wind chime that he bought in Uji.
    tickets           嵐山までの電車の切符を6枚ください。
                      Six train tickets to Arashiyama, please.
    bought_number     父は先斗町で傘を4本買いました。
                      My father bought four umbrellas in Pontocho.
    drank_cups        健さんは嵐山で紅茶を3杯飲みました。
                      Ken drank three cups of black tea in Arashiyama.
    there_are         醍醐寺の門の前に猫が3匹います。
                      There are three cats in front of the gate of Daigo-ji.
    is_there_near     仁和寺の近くにホテルはありますか。
                      Is there a hotel near Ninna-ji?

    because_weather   寒かったので、太郎さんは電車で龍安寺に行きました。
                      Taro went to Ryoan-ji by train because it was cold.
    because_hindered  母は忙しかったので、宇治に行きませんでした。
                      My mother did not go to Uji because she was busy.
    when_arrived      祖母が市場に着いたとき、雨が降っていました。
                      It was raining when my grandmother arrived at the market.
    if_weather        晴れたら、バスで美術館に行きましょう。
                      If it is sunny, let's go to the art museum by bus.
    if_chance         時間があれば、東福寺で紅葉を見たいです。
                      If I have time, I want to see the autumn leaves at Tofuku-ji.
"""

from utils.dataset.embedded.generate import generate, write_embedded

__all__ = ["generate", "write_embedded"]
