#!/usr/bin/env python3
"""Makes tests/data/golden/templates.json: expressions and chat templates, with what Jinja2 makes of them as transformers sets it up.

    pip install transformers==5.23.0 jinja2==3.1.6
    python tests/data/make_templates.py

A null text: Jinja2 refuses it. The templates are written anew, in the manner of released models' formats that their names say; none is a copy.
"""

import itertools
import json
import pathlib

from chat_formats import FORMATS
from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices, render_jinja_template

HERE = pathlib.Path(__file__).resolve().parent

VARIABLES = {
    "s": "Hello  World",
    "u": "é🙂ß\t\"it's\"\n<b>",
    "lines": "one\n\n  two\r\nthree",
    "csv": "a,b,,c",
    "think": "<think>\nplan\n</think>\n\nanswer",
    "n": 7,
    "neg": -7,
    "f": 2.5,
    "big": 12345678901234567890,
    "t": True,
    "no": False,
    "nil": None,
    "l": [3, 1, 2],
    "names": ["bob", "Alice", "carol", "alice"],
    "mixed": [1, "a", None, True, 2.0, [1, 2], {"k": "v"}],
    "d": {"b": 1, "a": [1, 2], "items": "mine", "C": {"x": None}},
    "e": {},
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25}, {"name": "ann", "age": 30.0, "tags": []}],
    "message": {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image"}]},
    "tools": [{"type": "function", "function": {"name": "look", "description": "See \"it\" <now>", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "enum": ["a", "b"]}, "days": {"type": ["integer", "null"], "default": 1.0}}, "required": ["city"]}}}],
}  # fmt: skip

TEXT_METHODS = """
upper() lower() capitalize() title() swapcase() casefold() strip() lstrip() rstrip() split() rsplit() splitlines() splitlines(True) isalpha() isdigit() isalnum() isspace()
islower() isupper() istitle() isascii() isidentifier() isprintable() isdecimal() isnumeric() encode() expandtabs() expandtabs(4) split('l') split('l',1) rsplit('l',1) split(None,1)
split(sep='o') split(sep='o',maxsplit=1) split('') partition('o') rpartition('o') partition('zz') rpartition('zz') partition('') replace('l','L') replace('l','L',1) replace('','-')
replace('l') find('o') find('zz') rfind('o') index('o') index('zz') rindex('o') count('l') count('') find('o',5) find('o',-3) count('l',3) count('l',0,4) startswith('He') startswith(('x','He'))
endswith('ld') endswith(('ld',)) startswith('l',2) startswith('') startswith(1) center(20) center(21,'*') ljust(15,'.') rjust(15) ljust(3) zfill(15) center(20,'ab') strip('Hd') lstrip('He') rstrip('dl')
removeprefix('He') removesuffix('ld') removeprefix(1) join(['a','b']) join([1]) join('xyz') format() format_map({}) no_such() __class__ __len__() translate({}) isspace(1) upper(1) strip(None)
""".split()

EXPRESSIONS = [f"s.{method}" for method in TEXT_METHODS if " " not in method] + [f"u.{method}" for method in TEXT_METHODS[:30]]

FILTERS_OF_TEXT = """
upper lower capitalize title trim trim('Hd') length count string list first last reverse wordcount indent indent(2) indent(2,true) indent(2,true,true) indent('> ') indent(width=3,first=True)
replace('o','0') replace('o','0',1) replace('l',1) truncate(5) truncate(5,true) truncate(5,true,'') truncate(9,false,'..',0) center center(20) escape e safe forceescape urlencode default('x') int float
abs round join('-') sort unique|list min max batch(2)|list slice(3)|list tojson tojson(indent=2) format format(1) int(5) float(1.5) string|length map('upper')|list select|list sum
wordwrap(4) striptags urlize pprint filesizeformat xmlattr items|list dictsort attr('upper') groupby('a') no_such
""".split()
EXPRESSIONS += [f"{value}|{it}" for value in ("s", "u", "lines") for it in FILTERS_OF_TEXT]
EXPRESSIONS += [f"{value}|{it}" for value in ("l", "names", "mixed", "e", "nil", "missing", "n", "range(4)", "d") for it in """
length list first last reverse|list sort sort(reverse=true) unique|list min max sum join join(', ') tojson string default('x') default('x',true) int float upper items|list batch(2)|list
batch(2,0)|list slice(2)|list slice(2,'-')|list map('string')|list select|list reject|list trim abs pprint
""".split()]

OPERANDS = ["7", "-7", "2", "0", "2.5", "-2.5", "true", "none", "'ab'", "[1]", "(1, 2)", "{'a': 1}", "missing", "1e16", "big"]
EXPRESSIONS += [f"{a} {op} {b}" for op in ("+", "-", "*", "/", "//", "%", "**", "~") for a, b in itertools.product(OPERANDS, OPERANDS) if not (op == "**" and b == "big")
                and ((OPERANDS.index(a) * 3 + OPERANDS.index(b) * 5 + len(op)) % 3 == 0 or {a, b} <= {"7", "-7", "2", "-2.5"})]  # fmt: skip
EXPRESSIONS += [f"{a} {op} {b}" for op in ("==", "!=", "<", ">=", "in", "not in", "and", "or") for a, b in itertools.product(OPERANDS[:-1], OPERANDS[:-1])
                if (OPERANDS.index(a) * 2 + OPERANDS.index(b) * 7 + len(op)) % 4 == 0]  # fmt: skip
TESTED = ["7", "2", "true", "2.5", "none", "'a'", "'A'", "''", "[1]", "(1,)", "{}", "missing", "range(2)", "namespace()", "range", "s.upper", "l|map('string')", "d.keys()", "cycler(1)", "'<'|e"]
EXPRESSIONS += [f"{value} is {test}" for value in TESTED for test in """
defined undefined none boolean true false integer float number string mapping sequence iterable callable lower upper escaped odd even
""".split()]
EXPRESSIONS += [f"{value} is {test}" for value in ("7", "'a'", "none", "missing") for test in (
    "divisibleby 7", "divisibleby(2)", "eq 7", "equalto('a')", "ne none", "gt 3", "ge 7", "lt 8", "le 'b'", "lessthan 3", "greaterthan 1", "in [7]", "in 'abc'", "not none", "not defined",
    "sameas none", "sameas(true)", "== 7", "filter", "test", "no_such",
)]  # fmt: skip

EXPRESSIONS += r"""
'upper' is filter
'odd' is test
'x' is filter
1 < 2 < 3
1 < 3 < 2
3 > 2 > 1 == 1
1 == 1.0 == true
'a' < 'b' <= 'b'
-2 ** 2
2 ** 3 ** 2
2 ** -1
0 ** 0
2 ** 100
2 ** 200
7 // 2 * 2 + 7 % 2
-7 // 2
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
1 / 3
4 / 2
10 // 0
1 % 0
1.0 / 0
1e3
1.5e-7
1e16
1e15
123456789.123
0.1 + 0.2
1_000
0x1F
0b101
0o17
1e400
-1e400
1e400 - 1e400
100000000000000000000
.5
1.
-1|abs
(-1)|abs
- 1 ~ 'x'
1 + 2 ~ 3 + 4
1 ~ 2 * 3
'a' 'b' "c"
'a' ~ none ~ true ~ 1.0 ~ [1] ~ {'a': none}
not 1 == 2
not not true
not missing
1 if true
1 if false
(1 if false) is defined
1 if false else 2
1 if nil else 2 if no else 3
'a' if missing else 'b'
(missing or 'x') ~ (nil and 1)
[] or {} or '' or 0
[1] and 'x'
s[0]
s[-1]
s[99]
s[1:4]
s[::-1]
s[-3:]
s[:2] ~ s[2:]
s[10:2:-2]
s[::0]
s[true]
s['upper']()
s.0
l[0] ~ l[-1]
l[9]
l[1:]
l[::-1]
l[::2]
l[-2:][0]
l['x']
l[1.0]
l.0
l.1.x
mixed[5][1]
mixed[6].k
(1, 2, 3)[1:]
range(10)[2:8:2]
range(10)[2:8:2]|list
range(5)[-1]
d[0]
d.a
d['a']
d.items
d['items']
d.items()
d.items()|list
d.keys()
d.keys()|list
d.values()|list
d.C.x
d.C.y
d.C.y.z
d.zz
d.zz.y
d['zz']
d['keys']
d.get('a')
d.get('zz')
d.get('zz', 5)
d.get('items')
d.get([])
d[[1]]
d.copy() == d
d.update({'x': 1})
d.pop('a')
d.pop
d.setdefault
d.clear is defined
d._x
d.__class__
d.__class__.x
d['__class__']
l.append(1)
l.append
l.copy()
l.index(1)
l.index(9)
l.count(1)
l.sort()
l.pop is defined
l.no
'items' in d
'zz' in d
1 in l
'ell' in s
1 in s
none in mixed
[1, 2] in mixed
1 in nil
1 in missing
missing in l
missing in s
missing == missing
missing == none
missing.x
missing['x']
missing()
missing + 1
missing ~ 'x'
missing|upper
missing|length
missing|list
missing < 1
-missing
nil.x
nil['x']
nil()
nil + 'x'
n.x
n.real
n.bit_length()
(5).bit_length()
f.is_integer()
f.real
t + 1
t * 'x'
true == 1
[true, 1, 1.0]|unique|list
{1: 'a', 1.0: 'b', true: 'c'}
{1: 2}[true]
{'a': 1}['a']
{'a': 1, 'b': 2,}
{(1, 2): 3}
{[1]: 2}
{none: 1, 2.5: 2}|tojson
{'x': missing}
[missing, none]
()
(1,)
(1, 2) + (3,)
[1] + [2]
[1] + (2,)
[1] * 3
'ab' * 3
3 * 'ab'
'ab' * -1
'a' + 1
1 + 'a'
[1, 2] == [1.0, 2]
(1, 2) == [1, 2]
{'a': 1} == {'a': 1.0}
[1, 2] < [1, 3]
'b' > 'a'
1 < 'a'
none < 1
{} < {}
range(3)
range(1, 9, 3)
range(3)|list
range(3, 0, -1)|list
range(0)
range(100001)
range(1, 2, 0)
range('a')
range(2.0)
range(3) == range(0, 3)
2 in range(3)
range(3).start ~ range(3).stop
namespace(a=1)
namespace(a=1).a
namespace({'a': 1}, b=2)
namespace(a=1)['a']
namespace(a=1).zz
namespace(_a=1)
namespace(a=namespace(b=2)).a.b
dict(a=1, b='x')
dict([('a', 1)])
dict({'a': 1}, b=2)
dict(5)
dict.fromkeys(['a', 'b'], 0)
cycler('a', 'b').next()
cycler('a', 'b').current
cycler()
joiner()() ~ joiner('|')()
lipsum()
raise_exception('no')
raise_exception(1)
strftime_now('%Y')|length
strftime_now('')
strftime_now('%%')
strftime_now(1)
range
s.upper
l|map('upper')
loop
self
caller
kwargs
'%s and %s' % ('a', 1)
'%s' % 'x'
'%s' % none
'%s' % [1, 2]
'%d' % 3.7
'%d' % 'x'
'%5d|%-5d|%05d|%+d|% d' % (1, 2, 3, 4, 5)
'%.2f %e %g %G' % (3.14159, 12345.678, 0.00001, 1e20)
'%x %X %o %#x' % (255, 255, 8, 255)
'%r %s %a' % ('é', 'é', 'é')
'%c%c' % (65, 'B')
'%%' % ()
'%s' % ()
'%s %s' % 'x'
'x' % 1
'x' % {}
'%(a)s' % {'a': 1}
'%(b)s' % {'a': 1}
'%(a)s' % 1
'%10.3s|' % 'abcdef'
'%*d' % (5, 1)
'%q' % 1
'%' % 1
'%s-%s'|format('a', 'b')
'%(x)s'|format(x=1)
'%s'|format('a', x=1)
'%s'|format(missing)
'{} {}'.format('a', 1)
'{0} {1} {0}'.format('a', 'b')
'{a} {b.x} {c[0]} {d[k]}'.format(a=1, b={'x': 2}, c=[3], d={'k': 4})
'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')
'{:5}|{:05}|{:+}|{:,}|{:_}|{: }'.format(1, 2, 3, 1234567, 1234567, 5)
'{:x} {:#x} {:b} {:o} {:X} {:c}'.format(255, 255, 5, 8, 255, 65)
'{:.2f} {:.3} {:e} {:g} {:%} {:,.2f}'.format(3.14159, 3.14159, 1234.5, 0.5, 0.25, 12345.678)
'{:f} {:.0f} {} {:.1}'.format(1.5, 2.5, 1e20, 1.0)
'{:010.2f}|{:<8}|{:=+8}'.format(-3.14159, 1.5, 3)
'{:d}'.format('a')
'{:s}'.format(1)
'{!r} {!s} {!a}'.format('é', 'é', 'é')
'{:{}}|'.format('a', 5)
'{:{w}}|'.format('a', w=4)
'{{}} {}'.format(1)
'{}'.format()
'{a}'.format(b=1)
'{} {0}'.format(1)
'{'.format()
'}'.format()
'{0.__class__}'.format('a')
'{0.upper}'.format('a') is string
'{:5}'.format(none)
'{}'.format(none) ~ '{}'.format([1, 'a'])
'{:5}|{:d}'.format(true, true)
'{:.3}'.format('abcdef')
'{:<5}|{:>5}'.format(true, 1.5)
'a\nb\tc\\d\'e\"f'
"it's"
'\x41\u00e9\U0001F642\101\0'
'\q\d'
'\é'
'\N{BULLET}'
'\ud83d'
'\x4'
'a\
b'
'{{ }} {% %}'
"say \"hi\""
['a\'b', "a\"b", 'a\'b"c', '\n\t\\\x00\x7f\u200b', 'é', '🙂', '\xad', '\u0301', '\u00a0']
u
[u]
{'k': u}
u|tojson
u|tojson(ensure_ascii=true)
d|tojson
d|tojson(indent=2)
d|tojson(indent=0)
d|tojson(indent='\t')
d|tojson(2)
d|tojson(separators=(',', ':'))
d|tojson(indent=1, separators=(';', '='))
d|tojson(sort_keys=true)
d|tojson(sort_keys=true, indent=4)
d|tojson(nope=1)
[]|tojson ~ {}|tojson ~ [[]]|tojson(indent=2) ~ [{}]|tojson(indent=2)
[1.0, 1e20, 1e-7, 0.1, -0.0, 1e400, -1e400]|tojson
(1, 'a')|tojson
missing|tojson
[missing]|tojson
range(3)|tojson
namespace()|tojson
{(1,): 2}|tojson
{true: 1, 1.5: 2}|tojson
'</script>&\''|tojson
tools|tojson
tools|tojson(indent=4)
tools[0].function|tojson
tools[0].function.parameters.properties.items()|list
tools[0].function.parameters.properties|length
tools[0].function.parameters.properties|dictsort
d|dictsort
d|dictsort(true)
d|dictsort(false, 'value')
{'b': 2, 'a': 1}|dictsort(by='value', reverse=true)
d|dictsort(by='x')
d|items|list
d|length
d|list
d|first
d|last
d|join(',')
d|reverse|list
d|map('upper')|list
d|string
d is mapping and d is sequence and d is iterable
names|sort
names|sort(case_sensitive=true)
names|sort(reverse=true)
names|unique|list
names|unique(true)|list
names|map('upper')|join(' ')
names|map('replace', 'a', 'A')|list
names|map('truncate', 3, true, '')|list
names|map('no_such')|list
names|map()|list
names|select('in', ['bob'])|list
names|select('equalto', 'bob')|list
names|reject('equalto', 'bob')|list
names|select('no_such')|list
names|min ~ names|max
names|min(case_sensitive=true)
[]|min
[]|max is defined
[]|first
[]|last
[]|first is defined
['a', 1]|sort
['a', 1]|max
people|map(attribute='name')|list
people|map(attribute='tags.0')|list
people|map(attribute='tags.0', default='-')|list
people|map(attribute='zz', default='?')|list
people|map(attribute='zz')|list
people|map(attribute='tags', default=[])|list
people|map(attribute='name', x=1)|list
people|selectattr('tags')|list|length
people|selectattr('age', 'gt', 26)|map(attribute='name')|list
people|selectattr('zz', 'defined')|list
people|selectattr('zz', 'undefined')|list|length
people|selectattr('zz.y')|list
people|rejectattr('age', 'equalto', 30)|map(attribute='name')|list
people|rejectattr('tags')|list|length
people|selectattr()|list
people|sort(attribute='name')|map(attribute='name')|list
people|sort(attribute='age,name')|map(attribute='name')|list
people|sort(attribute='age', reverse=true)|map(attribute='name')|list
people|sort(attribute='zz')|list|length
people|groupby('age')
people|groupby('name')
people|groupby('name', case_sensitive=true)|length
(people|groupby('age'))[0].grouper
(people|groupby('age'))[1].list|length
people|groupby('zz', default='none')|length
people|sum(attribute='age')
people|join(', ', attribute='name')
people|max(attribute='age')
people|min(attribute='name')
people|unique(attribute='age')|list|length
people|batch(2)|list|length
people|first|attr('name')
people[0]|attr('keys') is callable
namespace(x=1)|attr('x')
l|sum
l|sum(start=10)
[[1], [2]]|sum(start=[])
['a']|sum
l|batch(2)|list
l|batch(2, '-')|list
l|slice(2)|list
l|slice(2, '-')|list
l|slice(5)|list
l|slice(0)|list
(l|map('string'))|first
(l|map('string'))|last
(l|map('string'))|length
(l|map('string'))[0]
l|map('string')|join
(l|map('string')) is iterable
(l|select) and 1
([]|select) and 1
l|reverse|first
l|reverse|list
s|reverse
n|reverse
42|round
42.5|round
43.5|round
-2.5|round
2.675|round(2)
2.675|round(1, 'ceil')
2.675|round(1, 'floor')
42|round(1, 'floor')
42.55|round(1)|int
1234.5|round(-2)
'a'|round
1.5|round(method='x')
'42'|int
'42.9'|int
' 42 '|int
'x'|int
'x'|int(7)
'x'|int('no')
'0x1f'|int(base=16)
'1f'|int(base=16)
'0b11'|int(0, 2)
'zz'|int(0, 36)
'1_000'|int
'1__0'|int
'-5'|int
'+5'|int
2.9|int
-2.9|int
true|int
none|int
missing|int
[]|int(3)
1e400|int
'1e3'|int
'nan'|int
'inf'|int
'1.5'|float
'x'|float
'x'|float(2)
' 1e3 '|float
'inf'|float
'nan'|float
'infinity'|float ~ '-inf'|float
'1_0.5'|float
5|float
missing|float
-3|abs
-3.5|abs
true|abs
'a'|abs
1000|filesizeformat
1|filesizeformat
999|filesizeformat
1500000|filesizeformat
1500000|filesizeformat(true)
1e30|filesizeformat
'1000'|filesizeformat
'x'|filesizeformat
missing|default
missing|default('x')
missing|d('x')
nil|default('x')
nil|default('x', true)
''|default('x', boolean=true)
d.zz|default('x')
d.zz.y|default('x')
none|string
[1, 'a']|string
1.0|string ~ true|string
'a b'|title
"it's o'clock-time (now) [x]"|title
'ßa'|title
'ßa'|capitalize
'HELLO wORLD'|capitalize
'i İ ŉ'|upper
'ÀÉ ΑΣ'|lower
'a  b'|wordcount
'don\'t stop'|wordcount
'<a href="x">&\'</a>'|e
'<a>'|e|e
'<a>'|e|forceescape
'<a>'|escape|string
'<a>'|safe
('<a>'|e) ~ '<b>'
('<a>'|e) + '<b>'
'<b>' + ('<a>'|e)
('<a>'|e)|upper
('<a>'|e)|length
['<a>'|e]
('<a>'|e) == '&lt;a&gt;'
('<a>'|e)|replace('l', '<')
('<a>'|safe) + '<b>' + ('<c>'|safe)
'<b>' ~ ('<a>'|safe)|upper
('<a> '|safe).strip() + '<'
('<a>'|safe).split('a') + ['<']
('<a>'|safe)|string + '<'
('<a>'|safe)|trim|length
('<a>'|safe)[1:] + '<'
('<a>'|safe).replace('a', '<')
('<a>'|safe).startswith('<')
tools|tojson|safe
('x'|safe) in 'axb'
('x'|safe) == 'x' and ('x'|safe) is string
{'x': 1}['x'|safe]
0.5|round ~ 1.5|round ~ -0.5|round
'%.0f %.0f %.0f' % (0.5, 1.5, 2.5)
[0.1 + 0.2, 1e22, 1e21, 123456789012345680.0, 5e-324, 1.7976931348623157e308]
'a b/c?d=é&'|urlencode
{'a b': 'c/d', 'e': 1}|urlencode
[('a', 1), ('b', 'x y')]|urlencode
{'class': 'a', 'id': none, 'x': '<"'}|xmlattr
{'class': 'a'}|xmlattr(false)
{'a b': 1}|xmlattr
'x'|xmlattr
lines|indent
lines|indent(2, first=true)
lines|indent(2, blank=true)
lines|indent('>>')
1|indent
''|indent(first=true)
lines.splitlines()
lines.split('\n')
lines|trim|length
'a\x0bb\x0cc\x1cd\x85e\u2028f'.splitlines()
'\x1f a \x85\u3000'.strip()|length
'a\x1fb\xa0c'.split()
think.split('</think>')[-1].lstrip('\n')
think.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')
'</think>' in think
think.partition('</think>')[2]|trim
csv.split(',')
csv.split(',')|join('|')
csv.split(',')|select|list
csv.split(',', 2)
csv.rsplit(',', 2)
csv.split(',')[:-1]
csv.strip('ac')
csv.strip(',a')
' '.join(csv.split(','))
','.join(d)
', '.join(d.keys())
', '.join(l)
''.join([])
s.find('W') ~ s.index('W') ~ s.rfind('l')
'été'.find('t') ~ 'été'.index('é') ~ 'été'.rindex('é')
'aaa'.replace('a', 'b', 2)
'aaa'.replace('', '-')
'aaa'.count('aa')
'abc'.startswith('b', 1)
'abc'.endswith('b', 0, 2)
'abc'.startswith('', 3)
'abc'.startswith('', 4)
'abc'.find('', 4)
'abc'.count('', 4)
'a' in 'abc' and 'd' not in 'abc'
'A'.isupper() ~ 'a1'.islower() ~ '1'.isupper()
'Ab Cd'.istitle() ~ 'AB'.istitle()
'٣'.isdigit()
'½'.isnumeric()
'_a1'.isidentifier() ~ '1a'.isidentifier()
message.content is string
message.content is iterable
message.content is sequence
message.content is mapping
message.content[0].text
message.content[1].text
message.content[1].text is defined
message['content'][0]['type'] == 'text'
message.content|selectattr('type', 'equalto', 'text')|map(attribute='text')|join
message.tool_calls
message.tool_calls is defined and message.tool_calls is not none
message.get('name', 'nobody')
'name' in message
message.role == 'user' and message['role'] != 'system'
message.role.upper() ~ message['role'].title()
message.content|length > 1
message|length
message|list
message.items()|list|length
message|tojson(indent=2)
(message.content|map(attribute='type')|list)[-1]
big
big + 1
big % 10
big / 10
big * big
-big
big|string
big|tojson
f|string ~ f|int ~ f|round
f == 2.5 and f is float
5 is odd and 4 is even
n is divisibleby 7
n is not divisibleby(2)
n is odd is true
none is none
none is not none
nil is sameas none
1 is sameas 1
1 is sameas 2
l is sameas l
1 is in [1, 2]
1 is in([2])
'a' is in 'abc'
n is gt 3 and n is lt(9)
not n is odd
n is odd and s is string
s is string | string
[1, 2, 3][1] * 2
[[1, 2], [3]][0][1]
(1)
(1) + 2
((1, 2), 3)
[1, 2, 3,]
[(1, 2)]|list
{'a': {'b': [1, {'c': 2}]}}.a.b[1].c
{'a': 1}.a
'abc'.upper().lower().title()
'abc'|upper|lower|title
'abc'|upper.lower()
('abc'|upper).lower()
l|join(',')|upper
l|join(d=',')
l|join(',', 'x')
l|sort|first
l|sort|last
(l|sort)[0]
l|length * 2
l|length == 3
'a'.join(l|map('string'))
*l
l|
|upper
1 +
(1
[1
{1
{'a' 1}
a b
1 2
'a
s.
s..x
s[
s[]
s()
s(
f(x
f(*[1])
f(**{'a': 1})
f(a=1, 2)
range(*[1, 3])|list
dict(**{'a': 1})
dict(a=1, **{'b': 2})
dict(a=1, **{'a': 2})
dict(a=1, a=2)
range(stop=3)
1 is
1 is not
n is odd is even
true.x
True ~ False ~ None
TRUE
null
a = 1
1; 2
$
1 if
1 if true else
lambda
x.y.z
not
and
in [1]
1 not 2
@
`
a!b
s!='x'
s=='x'
1<>2
1===1
1&1
1^1
2 if 1 else 3 ~ 'x'
(2 if 1 else 3) ~ 'x'
1 or 2 if 0 else 3
[1, 2][0 if t else 1]
d[('a')]
d['a', 'b']
l[0, 1]
l[0:1, 1]
nil[0:1]
d[0:1]
n[0:1]
missing[0:1]
s[none:3]
s['a':]
s[:'b']
s[1.0:]
(l + l)|unique|list
l * 0
'' * 99999999999
''|length
' '|trim|length
[]|length
none|length
n|length
{}|length
range(5)|length
d.keys()|length
'a' is string and 1 is not string
range(3)|map('string')|join('-')
range(3)|sum
range(3)|last
range(3)|reverse|list
range(1, 4)|map('round', 1)|list
[1.5, 2.5]|map('round')|list
[1, 2, 3]|select('odd')|list
[1, 2, 3]|select('divisibleby', 2)|list
[0, 1, '', 'a', none]|select|list
[0, 1, '', 'a', none]|reject('none')|list
[none, missing]|select('defined')|list
['b', 'a']|sort|join
[[2, 'b'], [1, 'c']]|sort
[[2, 'b'], [1, 'c']]|sort(attribute='1')
[[2, 'b'], [1, 'c']]|map(attribute=1)|list
[[2, 'b'], [1, 'c']]|map('first')|list
[[2, 'b'], [1, 'c']]|map('last')|join
[[2, 'b'], [1, 'c']]|map('join', '-')|list
[{'a': 1}]|map('tojson')|list
[{'a': 1}]|map('items')|map('list')|list
[1, [2, [3, [4]]]]|string
{'a': {'b': {'c': {}}}}|string
[1, 'two', 3.0, none, true]|pprint
{'b': 1, 'a': 2}|pprint
'long '*30|pprint
('long '*30)|pprint
loop.index
""".strip("\n").split("\n")

# Whole templates of syntax: blocks, scopes, white space.
SYNTAX = r"""
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}
{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is undefined }}{% endfor %}
{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{{ loop.cycle('a', 'b') }} {% endfor %}
{% for x in l %}{{ loop }}{% endfor %}
{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{{ loop.last }}{% else %}none{% endfor %}
{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}
{% for x in missing %}{{ x }}{% else %}empty{% endfor %}
{% for x in nil %}{{ x }}{% endfor %}
{% for x in n %}{{ x }}{% endfor %}
{% for c in 'héy' %}{{ c }}.{% endfor %}
{% for k in d %}{{ k }}{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}
{% for k, v in d|dictsort %}{{ k }};{% endfor %}
{% for (a, b) in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}
{% for a, b in ['xy'] %}{{ b }}{{ a }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}
{% for x in l %}{% break %}{% else %}never{% endfor %}
{% for x in range(3) %}{% for y in range(2) %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }}{% endfor %}
{% for x in [[1, [2, [3]]], 4] recursive %}{% if x is iterable %}[{{ loop(x) }}]{% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}
{% for x in l recursive %}{{ loop() }}{% endfor %}
{% for x in l %}{{ loop(l) }}{% endfor %}
{% for x in l|map('string') %}{{ loop.length }}{{ x }}{% endfor %}
{% for loop in l %}{{ loop }}{% endfor %}
{% break %}
{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns }}
{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b }}{{ ns.b is defined }}
{% set ns = {} %}{% set ns.a = 1 %}
{% set missing.a = 1 %}
{% set ns = namespace() %}{% set ns._a = 1 %}
{% set ns = namespace(on=true) %}{% for x in l if ns.on %}{{ x }}{% set ns.on = false %}{% endfor %}
{% set ns = namespace(k=0) %}{% for x in l if x > 0 %}{% set ns.k = ns.k + x %}{{ ns.k }},{% endfor %}
{% set ns = namespace(items=[]) %}{% for x in l %}{% set ns.items = ns.items + [x * 2] %}{% endfor %}{{ ns.items }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set (a, b) = [1, 2] %}{{ a }}{{ b }}
{% set a, b = [1] %}
{% set a = 1, 2 %}{{ a }}
{% set a = b = 1 %}
{% set 1 = a %}
{% set none = 1 %}
{% set a.b.c = 1 %}
{% set x %}a {{ n }} b{% endset %}[{{ x }}]{{ x is string }}
{% set x | upper | trim %} a{{ n }} {% endset %}[{{ x }}]
{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}
{% if t %}{% set x = 1 %}{% endif %}{{ x }}
{% if no %}{% set x = 1 %}{% endif %}{{ x }}{{ x is defined }}
{% if no %}a{% elif nil %}b{% elif n %}c{% else %}d{% endif %}
{% if missing %}a{% else %}b{% endif %}
{% if l|select %}a{% endif %}{% if []|select %}b{% endif %}{% if namespace() %}c{% endif %}{% if range(0) %}d{% endif %}
{% if 1, 2 %}x{% endif %}
{% if t: %}x{% endif %}
{% if no %}{{ x|no_such }}{% endif %}ok
{% if no %}{{ x is no_such }}{% endif %}ok
{{ 'a'|no_such if no else 'b' }}
{{ 'a' if no else 'b'|no_such }}
{% for x in [] %}{{ x|no_such }}{% endfor %}ok
{% if no %}{% for x in [] %}{{ x|no_such }}{% endfor %}{% endif %}ok
{% if t %}{{ 'x'|no_such }}{% endif %}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a is defined }}{{ c is defined }}
{% with a = n, b = a %}{{ a }}{{ b }}{% endwith %}
{% with %}{{ n }}{% endwith %}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='y') }}{{ m() }}{{ m(b=5, a=4) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, z=4) }}
{% macro m(a, a) %}{% endmacro %}
{% macro m(a=1, b) %}{% endmacro %}
{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(5) }}
{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}{{ m(none) }}
{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(3) }}
{% macro m() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ m() }}
{% macro m() %}{% set inner = 1 %}{{ inner }}{% endmacro %}{{ m() }}{{ inner is defined }}
{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}body{{ n }}{% endcall %}
{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}-{{ b }}{% endcall %}
{% macro m() %}{% if caller %}has{% else %}none{% endif %}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}
{% call n %}{% endcall %}
{% macro m() %}x{% endmacro %}{{ m }}{{ m.name }}{{ m.arguments }}
{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}
{% macro outer() %}{% macro inner(x) %}<{{ x }}>{% endmacro %}{{ inner(1) }}{% endmacro %}{{ outer() }}{{ inner is defined }}
{{ m() }}{% macro m() %}{% endmacro %}
{% filter upper %}a{{ s }}{% endfilter %}
{% filter replace('a', 'b')|upper %}aXa{% endfilter %}
{% filter indent(2) %}a
b{% endfilter %}
{% filter no_such %}x{% endfilter %}
{% block a %}x{{ n }}{% endblock %}{% block b scoped %}y{% endblock b %}
{% set q = 1 %}{% block a %}{{ q }}{% endblock %}
{% for i in l %}{% block a %}{{ i is defined }}{% endblock %}{% endfor %}
{% for i in l %}{% block a scoped %}{{ i }}{% endblock %}{% endfor %}
{% block a %}{% endblock %}{% block a %}{% endblock %}
{% print n %}{% print n, s %}
{% raw %}{{ n }}{% if %}{% endraw %}
{%- raw -%}  {{ n }}  {%- endraw -%}  x
{% raw %}
a
{% endraw %}
b
{# comment #}a{#- comment -#} b {#
lines #}
c
{# unclosed
{{ n }
{{ n
{% if t
{% if t %}
{% endif %}
{% for %}{% endfor %}
{% for x l %}{% endfor %}
{% for x in l %}
{% else %}
{% nosuch %}
{% do l %}
{% include 'x' %}
{% import 'x' as y %}
{% from 'x' import y %}
{% extends 'x' %}
{% autoescape true %}{{ '<' }}{% endautoescape %}
{% trans %}x{% endtrans %}
{% generation %}a{% set z = 1 %}{{ n }}{% endgeneration %}{{ z is defined }}
{% generation %}
{%- generation -%} x {%- endgeneration -%} y
{%+ if t %} a {%+ endif %}
{{- n -}}  x  {{+ n }}
  {{ n }}
  {%- if t %}
    a
  {%- endif %}
    {% if t %}
  b
    {% endif %}
  {% if t -%}
  c
  {%- endif +%}
d
a {% if t %} b {% endif %} c
a
{% if t %}

b
{% endif %}

c
{{ '{{' }}{{ "}}" }}{{ '%}' }}
{{ {'a': {'b': 1}}.a }}{{ {'a':1}}}
{{ (1
+ 2) }}
{{ n }} {{ n }}
{{{'a': 1}}}
{{ 'a' }}{{ "b" }}
{%set x=1%}{{x}}
{%-set x=1-%} {{x}}
{% set x = 1 -%}

  y
a{%- if t %} b{% endif -%}
  c
a	{% if t %}	b	{% endif %}	c
 {# x #} y
x {#- y -#} z
{% if t %}a{% endif %}
{% for x in l %}
  {{ x }}
{% endfor %}
{% for x in l -%}
  {{ x }}
{%- endfor %}
{%- for x in l %}
{{- x }}{{ ' ' }}
{%- endfor -%}
""".strip("\n")

SYNTAX = [line for line in SYNTAX.split("\n") if line] + [
    "a\r\nb\rc\nd\n", "a\n\n", "\n", "", "\n\na", "{{ n }}\n", "{{ n }}\n\n", "{% if t %}\r\nx\r\n{% endif %}\r\n", "{{ 'a\r\nb' }}|{{ \"c\rd\" }}", "  {% if t %}\n  x\n  {% endif %}\n  y\n",
    "{% raw %}\r\n  {% x %}\r\n  {% endraw %}\r\nz", "x\n  {#- c #}\n y", "x\n  {# c #}\n y", "x\n  {# c -#}\n y", "x\n  {#+ c +#}\n y", "\t{%+ if t %}a{% endif %}", "\u00a0{% if t %}a{% endif %}\u00a0",
    "a \x1f{%- if t %}b{% endif -%}\x1f c", "\x0b{% if t %}a{% endif %}", "{% if t %}a{% endif %}\x0bb", "{{ n -}}\n\n x", "{{ n }}\n\n x", "{%- if t -%}\n a \n{%- endif -%}\n", "{% for x in l %}\n{{ x }}\n{% endfor %}\n",
    "{% filter indent(2) %}\na\n\nb\n{% endfilter %}", "{% set x %}\n a\n{% endset %}[{{ x }}]", "{% macro m() %}\n a\n{% endmacro %}[{{ m() }}]", "{% raw %}a{% endraw %}\nb", "{%- raw %} a {% endraw -%} b", "{% raw -%} a {%- endraw %} b",
    "{% if t %}{# x #}\n{% endif %}y", "{{ '\\n' }}{{ '\\\\n' }}", "{{ \"\\\"\" }}", "{{ 'a' ~ \n 'b' }}", "{{ s | \n upper }}", "{% if t and\n n %}x{% endif %}", "{# {{ #}x", "{# {% if %} #}x", "{{ '{#' }}x{{ '#}' }}",
    "{% set x = '%}' %}{{ x }}", "{% set x = '}}' %}{{ x }}", "{ {n} }{%%}", "{", "}", "{{", "}}", "{%", "%}", "{#", "#}", "{{}}", "{{ }}", "{%  %}", "{% if %}x{% endif %}", "a{{ n }}b{# #}c{% if t %}d{% endif %}e",
]  # fmt: skip


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = [{"type": "function", "id": "c1", "function": {"name": "look", "arguments": {"city": "Zürich", "days": 2, "deep": {"z": [1.0, None], "a": True}}}}]
TOOL = VARIABLES["tools"] + [{"type": "function", "function": {"name": "add", "description": "Adds <b>&'s", "parameters": {"type": "object", "properties": {
    "items": {"type": "array", "items": {"type": "number"}}, "where": {"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "array"}}}}, "required": []}}}]  # fmt: skip
CONVERSATIONS = [
    {"messages": [turn("user", "Hi  there\n"), turn("assistant", " Hello <b>&\"quotes\"'</b> "), turn("user", "é🙂\n\nline")], "add_generation_prompt": True},
    {"messages": [turn("system", " Be brief. "), turn("user", "1 + 1?"), turn("assistant", "2"), turn("user", "+ 3?"), turn("assistant", "<think>\n2+3\n</think>\n\n5")]},
    {"messages": [turn("user", "weather?"), turn("assistant", "", tool_calls=CALL), turn("tool", "{\"t\": 3}", tool_call_id="c1", name="look"), turn("assistant", "3 degrees")],
     "tools": TOOL, "add_generation_prompt": True},
    {"messages": [turn("user", [{"type": "text", "text": "see"}, {"type": "image"}]), turn("assistant", "a cat", reasoning_content="it purrs")], "enable_thinking": False},
    {"messages": [turn("user", "q", name="Ann"), turn("assistant", "a", thinking="hm"), turn("user", "r")], "documents": [{"title": "T", "text": "x"}], "add_generation_prompt": True,
     "enable_thinking": False, "date_string": "1 May 2025", "thinking_budget": 600, "builtin_tools": ["code_interpreter", "web"]},
    {"messages": [{"role": "user"}, turn("assistant", 5), turn("critic", "no")], "tools": []},
]  # fmt: skip
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def rendered(source, variables):
    """The text and what stood between generation tags; `None` where Jinja2 refuses."""
    try:
        text, generations = _render_with_assistant_indices(_compile_jinja_template(source), **{"messages": [], "tools": None, "documents": None, "add_generation_prompt": False, **variables})
        text.encode()
        # An address is another each time.
        assert " at 0x" not in text
    except Exception:
        return None
    return [text, generations] if generations else text


def conversation(source, variables):
    """As `apply_chat_template` renders it."""
    try:
        texts, generations = render_jinja_template(conversations=[variables["messages"]], chat_template=source, return_assistant_tokens_mask=True, **TOKENS,
                                                   **{key: value for key, value in variables.items() if key != "messages"})  # fmt: skip
    except Exception:
        return None
    return [texts[0], generations[0]] if generations[0] else texts[0]


golden = {
    "variables": VARIABLES,
    "expressions": {it: rendered("{{ " + it + " }}", VARIABLES) for it in dict.fromkeys(EXPRESSIONS)},
    "syntax": {it: rendered(it, VARIABLES) for it in dict.fromkeys(SYNTAX)},
    "tokens": TOKENS,
    "conversations": CONVERSATIONS,
    "formats": {name: {"source": source, "texts": [conversation(source, it) for it in CONVERSATIONS]} for name, source in FORMATS.items()},
}
target = HERE / "golden" / "templates.json"
target.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
print(f"{target}: {len(golden['expressions'])} expressions, {len(golden['syntax'])} templates of syntax, {len(FORMATS)} of formats")
refused = sum(text is None for it in golden["formats"].values() for text in it["texts"])
print(f"refused: {sum(text is None for text in golden['expressions'].values())}, {sum(text is None for text in golden['syntax'].values())}, {refused}")
