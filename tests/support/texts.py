"""Texts in many scripts, the same in every run, for comparing tokenizers."""

# ruff: noqa: RUF001 (the letters that look alike are what is tested)

from __future__ import annotations

import random

_PHRASES = (
    "The quick brown fox jumps over the lazy dog.",
    "Don't you think we'll've finished by 10:30? I'd say they're late.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Pijamalı hasta yağız şoföre çabucak güvendi.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر.",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश।",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。",
    "다람쥐 헌 쳇바퀴에 타고파.",
    "Ẋạ̈y̌ combining: e\u0301 n\u0303 a\u030a o\u0308\u0304",
    "👩‍👩‍👧‍👦 🇩🇪🇯🇵 👍🏽 ❤️ 🏴‍☠️ \U0001f9d1\u200d\U0001f4bb",
    "½ ¾ Ⅷ ② ٣٤٥ १२३ ४५ ௧௨ 一二三",
    "ﬁ ﬂ ﬃ Ǆ ℃ Å ﷺ ㎏",
    "def f(x: int) -> int:\n    return x ** 2  # squares\n",
    'for (int i = 0; i < 10; ++i) { printf("%d\\n", a[i]); }',
    "SELECT name, COUNT(*) FROM t WHERE id >= 100 GROUP BY 1;",
    '{"key": [1, 2.5e-3, null, true], "π": "\\u00e9"}',
    "<html><body class='x'>&nbsp;text</body></html>",
    "https://example.com/a?b=c&d=%20#frag user@example.org",
    "3.14159 1,000,000 2024-02-29 0xDEADBEEF 1e-9 +49 30 1234567",
    "a\tb\t\tc\t\t\td\r\ne\n\n\nf\v\fg",
    "  two   three    four     five ",
    "\u00a0nbsp\u2003em\u200bzero\u3000wide\u2028line\ufeffbom",
    "!!!???...;;;:::---___===+++***///\\\\\\|||~~~```",
    "$€£¥₹ ©®™ §¶†‡ “quoted” ‘single’ «guillemets» — – …",
    "\x00\x01\x1b[31mred\x7f\x80\x9f",
    "\U0001f600\U00020000\U0010fffd \ud7ff\ue000",
)
_SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>", "<|im_start", "<|IM_END|>")
_JOINTS = ("", " ", "  ", "\n", "\n\n", "\t", " \n ", "   ")


def texts_in_many_scripts(count: int = 300) -> list[str]:
    """`count` different texts: every phrase alone, then random joins and cuts, some with special tokens."""
    rng = random.Random(20240229)
    texts = dict.fromkeys(("", " ", "\n", "7", *_PHRASES, *_SPECIALS))
    while len(texts) < count:
        pieces = rng.choices(_PHRASES, k=rng.randint(2, 5))
        if rng.random() < 0.3:
            pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(_SPECIALS))
        joined = "".join(piece + rng.choice(_JOINTS) for piece in pieces)
        start = rng.randrange(8)
        texts[joined[start : rng.randint(start + 1, len(joined))]] = None
    return list(texts)
