"""Chat templates in the manner of released models' formats, for make_templates.py. Each is written anew for the constructs that such
templates use; the names say whose way of marking turns it follows."""

# Turns between two marks, with the roles' names: (begin, between, end).
MARKS = {
    "ChatML": ("<|im_start|>", "\n", "<|im_end|>\n"),
    "Qwen2": ("<|im_start|>", "\n", "<|im_end|>\n"),
    "Yi": ("<|im_start|>", "\n", "<|im_end|>\n"),
    "SmolLM2": ("<|im_start|>", "\n", "<|im_end|>\n"),
    "Llama 3": ("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
    "Phi-3": ("<|", "|>\n", "<|end|>\n"),
    "Phi-4": ("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
    "Zephyr": ("<|", "|>\n", "</s>\n"),
    "StableLM": ("<|", "|>\n", "<|endoftext|>\n"),
    "Granite": ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>\n"),
    "OLMo": ("<|", "|>\n", "\n"),
    "Falcon": ("", ": ", "\n"),
    "Vicuna": ("", ": ", " "),
    "Nemotron": ("<extra_id_1>", "\n", "\n"),
    "Exaone": ("[|", "|]", "[|endofturn|]\n"),
    "GLM": ("<|", "|>\n", ""),
    "InternLM": ("<|im_start|>", "\n", "<|im_end|>\n"),
    "Baichuan": ("<reserved_", ">", ""),
}

PLAIN = """{{%- for message in messages %}}
    {{{{- {begin!r} + message['role'] + {between!r} + message['content'] + {end!r} }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}
    {{{{- {begin!r} ~ 'assistant' ~ {between!r} }}}}
{{%- endif %}}"""

FIRST_SYSTEM = """{{{{ bos_token }}}}{{% if messages[0].role == 'system' %}}{{% set rest = messages[1:] %}}{{% set system = messages[0].content | trim %}}{{% else %}}{{% set rest = messages %}}{{% set system = '' %}}{{% endif %}}
{{% for m in rest -%}}
{{% if loop.first and system -%}}
{begin}system{between}{{{{ system }}}}{end}
{{%- endif -%}}
{begin}{{{{ m.role | lower }}}}{between}{{{{ m.content | trim }}}}{end}
{{%- if loop.last and add_generation_prompt -%}}
{begin}assistant{between}
{{%- endif %}}
{{%- endfor %}}"""

FORMATS = {}
for number, (name, (begin, between, end)) in enumerate(MARKS.items()):
    shape = PLAIN if number % 2 == 0 else FIRST_SYSTEM
    FORMATS[name] = shape.format(begin=begin, between=between, end=end)

FORMATS["Llama 2"] = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Turns must alternate user/assistant') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
FORMATS["Mistral"] = """{%- set ns = namespace(index=0) -%}
{{- bos_token }}
{%- for message in messages | rejectattr('role', 'equalto', 'system') %}
    {%- if message.role == 'user' %}
        {%- if tools is defined and tools is not none and loop.last %}
            {{- '[AVAILABLE_TOOLS]' }}{{ tools | tojson }}{{ '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] }}, "id": "{{ call.id }}"}{{ '' if loop.last else ', ' }}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]{"content": ' ~ message.content ~ ', "call_id": "' ~ message.tool_call_id ~ '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- message.content | trim ~ eos_token }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}"""
FORMATS["Gemma"] = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""
FORMATS["Gemma 3"] = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set prefix = (messages[0]['content'] if messages[0]['content'] is string else messages[0]['content'][0]['text']) + '\n\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}"""
FORMATS["Qwen2.5 with tools"] = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You help.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\nAnswer {\\"name\\": <name>, \\"arguments\\": <object>}<|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{ tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
FORMATS["Qwen3"] = """{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {{- '<tool_call>' }}{{ call.function.name }}: {% if call.function.arguments is string %}{{ call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}{% endif %}{{- '</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
FORMATS["Llama 3.1"] = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("no first user message") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
    {{- first + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call at once!") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
FORMATS["Command R"] = """{{ bos_token }}{% if documents %}{{ '## docs' }}{% for document in documents %}{{ '\\nDocument ' ~ loop.index0 ~ ': ' }}
{% for key, value in document.items() %}{{ key ~ '=' ~ value ~ (', ' if not loop.last else '') }}{% endfor %}{% endfor %}{% endif %}{%- macro json_type(type, items) -%}
    {%- if type == "array" -%}List[{{ json_type(items.type, items['items']) }}]{%- elif type is string -%}{{ {'string': 'str', 'integer': 'int', 'number': 'float', 'boolean': 'bool'}.get(type, 'Any') }}{%- else -%}{{ type | join(' or ') }}{%- endif -%}
{%- endmacro -%}
{%- for tool in tools or [] %}
def {{ tool.function.name }}({% for name, param in tool['function']['parameters']['properties'].items() %}{{ name }}: {{ json_type(param.type, param['items']) }}{% if name not in tool.function.parameters.required %} = None{% endif %}{{ ', ' if not loop.last }}{% endfor %}):
    \"\"\"{{ tool.function.description | default('', true) }}\"\"\"
{%- endfor %}
{% for message in messages %}<|START_OF_TURN_TOKEN|>{{ {'user': '<|USER_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>'}[message.role] | default('<|SYSTEM_TOKEN|>') }}{{ message.content }}<|END_OF_TURN_TOKEN|>{% endfor %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' if add_generation_prompt }}"""
FORMATS["Hermes"] = """{%- macro describe(spec, depth=0) -%}
{%- for name, value in spec | dictsort %}
{{ '  ' * depth }}{{ name }}{% if value is mapping %}:{{ describe(value, depth + 1) }}{% elif value is string %}: {{ value }}{% elif value is sequence %}: [{{ value | join(', ') }}]{% else %}: {{ value }}{% endif %}
{%- endfor -%}
{%- endmacro -%}
{% for tool in tools or [] %}{{ describe(tool) }}
{% endfor %}
{%- for message in messages -%}
<|im_start|>{{ message.role ~ ((' name=' ~ message.name) if message.name is defined else '') }}
{{ message.content if message.content is string else message.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('\n') }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
FORMATS["DeepSeek R1"] = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<|User|>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is none %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}{{'<|Assistant|><|tool_calls_begin|>' + tool['type'] + '<|tool_sep|>' + tool['function']['name']}}{%- set ns.is_first = true -%}{%- else %}{{'\\n' + tool['type']}}{%- endif %}{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{%- if ns.is_tool %}{{'<|tool_outputs_end|>' + message['content'] + '<|end|>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<|Assistant|>' + content + '<|end|>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<|tool_outputs_begin|>' + message['content']}}{%- set ns.is_output_first = false %}{%- else %}{{'\\n' + message['content']}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<|tool_outputs_end|>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<|Assistant|><think>\\n'}}{% endif %}"""
FORMATS["gpt-oss"] = """{%- macro render_type(spec, required=false) -%}
    {%- if spec.type == "array" -%}
        {{- (render_type(spec['items']) if spec['items'] else "any") + "[]" -}}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping and spec.type[0] is defined -%}
        {{- spec.type | join(" | ") -}}
    {%- elif spec.enum is defined -%}
        {{- '"' + spec.enum | join('" | "') + '"' -}}
    {%- elif spec.type == "object" -%}
        {
        {%- for name, prop in (spec.properties or {}).items() -%}
            {{- name ~ ("?" if name not in (spec.required or []) else "") ~ ": " ~ render_type(prop) }}{{ ", " if not loop.last else "" }}
        {%- endfor -%}
        }
    {%- else -%}
        {{- spec.type or "any" -}}
    {%- endif -%}
{%- endmacro -%}
{%- if tools -%}namespace functions {
{% for tool in tools %}
{%- set tool = tool.function -%}
// {{ tool.description + "\\n" -}}
type {{ tool.name }} = (_: {{ render_type(tool.parameters) }}) => any;

{% endfor -%}
}
{%- endif -%}
{%- for message in messages -%}
    {%- if 'thinking' in message and message.role == 'assistant' %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{% endif -%}
    {{- "<|start|>" + message.role + "<|message|>" ~ message.content ~ "<|end|>" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"""
FORMATS["Jamba"] = """{# Variables #}
{% set ns = namespace(count=0, roles=[], last=none) %}
{#- Body #}
{%- for message in messages -%}
{%- if message.role in ['user', 'assistant'] and message.role not in ns.roles %}{% set ns.roles = ns.roles + [message.role] %}{% endif -%}
{%- set ns.count = ns.count + 1 -%}{%- set ns.last = message -%}
{{ "%d. %s: %s\\n" | format(ns.count, message.role, message.content) }}
{%- endfor -%}
{{ ns.roles | sort | join('/') }}{{ ns.last.role if ns.last else '' }}
{%- if add_generation_prompt %} >{% endif %}"""
FORMATS["Zamba"] = """{%- for message in messages if message.role != 'system' %}{{ loop.index ~ '/' ~ loop.length }} {{ loop.cycle('Q', 'A') }}: {{ message['content'] }}{% if not loop.last %}{{ '\n' }}{% endif %}{% else %}nothing{% endfor %}"""
FORMATS["MPT"] = """{% for message in messages %}{% if loop.first %}{% if message.role != 'system' %}<|im_start|>system
Be kind.<|im_end|>
{% endif %}{% endif %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- if not loop.last or message.role != 'assistant' %}<|im_end|>
{% else %}<|im_end|>
{%- endif %}
{% endfor %}"""
FORMATS["Dolly"] = """{%- set sep = '\n\n' -%}Below.{{ sep }}
{%- for m in messages %}{% set name = {'user': 'Instruction', 'assistant': 'Response', 'system': 'Context'}.get(m.role, m.role | title) %}### {{ name }}:{{ '\n' ~ m.content | string | trim ~ sep }}{% endfor -%}
{% if add_generation_prompt %}### Response:{{ '\n' }}{% endif %}"""
FORMATS["Alpaca"] = """{% set parts = [] %}{% for m in messages %}{% set parts = parts + [m.content] %}{% endfor %}{{ parts | length }}{{ messages | map(attribute='content') | list | string }}"""
FORMATS["OpenChat"] = """{{ bos_token }}{% for message in messages %}{{ 'GPT4 Correct ' + message['role'].title() + ': ' + message['content'] + '<|end_of_turn|>'}}{% endfor %}{% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}"""
FORMATS["Starling"] = """{% for message in messages %}{{ message['role'].capitalize() }}: {{ message['content'].replace('\n', ' ') }}{{ eos_token if message.role == 'assistant' }}{% endfor %}"""
FORMATS["Solar"] = """{% for message in messages %}{% if message.role == 'system' %}{% if message.content %}### System:
{{ message.content }}

{% endif %}{% elif message.role == 'user' %}### User:
{{ message.content }}

{% elif message.role == 'assistant' %}### Assistant:
{{ message.content }}

{% endif %}{% if loop.last and add_generation_prompt %}### Assistant:
{% endif %}{% endfor %}"""
FORMATS["BLOOM"] = """{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"""
FORMATS["Blenderbot"] = """{% for message in messages %}{% if message.role == 'user' %}{{ ' ' }}{% endif %}{{ message.content }}{% if not loop.last %}{{ '  ' }}{% endif %}{% endfor %}{{ eos_token }}"""
FORMATS["RWKV"] = """{%- for m in messages -%}
{{ {'user': 'User', 'assistant': 'Assistant'}[m.role] or 'System' }}: {{ m.content | replace('\r\n', '\n') | replace('\n\n', '\n') }}

{% endfor -%}"""
FORMATS["Orca"] = """{%- set roles = {'system': 'System', 'user': 'User', 'assistant': 'Assistant'} -%}
{%- for m in messages %}
  {%- if m.role not in roles %}{{ raise_exception('role ' ~ m.role ~ ' is unknown: ' ~ roles.keys() | list) }}{% endif %}
  {{- roles[m.role] }}: {{ m.content }}
{% endfor %}"""
FORMATS["Grok"] = """{% for message in messages %}{% set who = 'Human' if message.role == 'user' else message.role | capitalize %}{{ who }}: {{ message.content }}<|separator|>

{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
FORMATS["Aya"] = """{{ bos_token }}{%- set bar = '|' -%}
{%- call(kind) turn() %}{% endcall %}{%- macro turn() %}{{ caller('x') }}{% endmacro -%}"""
FORMATS["Aya Expanse"] = """{%- macro turn(role) -%}<|{{ role | upper }}|>{{ caller() if caller }}<|END|>{%- endmacro -%}
{%- for m in messages %}{% call turn(m.role) %}{{ m.content | trim }}{% endcall %}{% endfor -%}{{ turn('chatbot') if add_generation_prompt }}"""
FORMATS["ERNIE"] = """{%- if not add_generation_prompt is defined -%}{%- set add_generation_prompt = true -%}{%- endif -%}
{%- if not cls_token is defined -%}{%- set cls_token = "<|begin_of_sentence|>" -%}{%- endif -%}
{{- cls_token -}}
{%- for message in messages -%}{%- if message["role"] == "user" -%}{{- "User: " + message["content"] + "
" -}}{%- elif message["role"] == "assistant" -%}{{- "Assistant: " + message["content"] + eos_token -}}{%- elif message["role"] == "system" -%}{{- message["content"] + "
" -}}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}{{- "Assistant: " -}}{%- endif -%}"""
FORMATS["Hunyuan"] = """{% set context = {'has_head': true} %}{% for message in messages %}{% if loop.index0 == 0 %}{% if message['role'] == 'system' %}{% set content = '<|startoftext|>' + message['content'] + '<|extra_4|>' %}{% else %}{% set content = '<|startoftext|>' + message['content'] + '<|extra_0|>' %}{% endif %}{% elif loop.index0 % 2 %}{% set content = message['content'] + '<|eos|>' %}{% else %}{% set content = message['content'] ~ '<|extra_0|>' %}{% endif %}{{ content }}{% endfor %}"""
FORMATS["Kimi"] = """{%- for message in messages -%}{%- if loop.first and messages[0]['role'] != 'system' -%}<|im_system|>system<|im_middle|>You are here.<|im_end|>{%- endif -%}<|im_{{ message.role }}|>{{ message.get('name', message.role) }}<|im_middle|>{%- if message['content'] is string -%}{{ message['content'] }}{%- elif message['content'] -%}{%- for part in message['content'] -%}{{ part['text'] if part['type'] == 'text' else '<' ~ part.type ~ '>' }}{%- endfor -%}{%- endif -%}{%- if message.tool_calls -%}{% for call in message.tool_calls %}{{ call.id or ('functions.' ~ call['function']['name'] ~ ':' ~ loop.index0) }}{{ call['function']['arguments'] | tojson(ensure_ascii=False, separators=(',', ':')) }}{% endfor %}{%- endif -%}<|im_end|>{%- endfor -%}{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"""
FORMATS["MiniMax"] = """{{ '<beginning_of_sentence>' -}}{%- for m in messages %}{{- m.role }} name={{ m.name | default('none') }}
{% if m.content is not string -%}{%- for c in m.content | default([], true) -%}{{ c.text | default('') }}{%- endfor -%}{%- else -%}{{ m.content }}{%- endif %}<end_of_sentence>
{% endfor -%}"""
FORMATS["Seed"] = """{%- set budget = {0: 0, 512: 128, 1024: 256} -%}
{%- if not thinking_budget is defined %}{% set thinking_budget = -1 %}{% endif -%}
{%- set ns = namespace(interval=none) -%}
{%- for k, v in budget | dictsort -%}{%- if ns.interval is none and thinking_budget <= k -%}{%- set ns.interval = v -%}{%- endif -%}{%- endfor -%}
{%- if ns.interval is none -%}{%- set ns.interval = budget[1024] -%}{%- endif -%}
interval={{ ns.interval }} {% for m in messages -%}{{ bos_token }}{{ m.role }}
{{ m.content }}{{ eos_token }}{% endfor %}"""
FORMATS["LFM2"] = """{{- bos_token -}}{%- set system_prompt = "" -%}{%- set ns = namespace(system_prompt="", keep=true) -%}
{%- if messages[0]["role"] == "system" -%}{%- set ns.system_prompt = messages[0]["content"] -%}{%- set messages = messages[1:] -%}{%- endif -%}
{%- if tools -%}{%- set ns.system_prompt = ns.system_prompt + ("\\n" if ns.system_prompt else "") + "List of tools: [" -%}{%- for tool in tools -%}{%- if tool is not string -%}{%- set tool = tool | tojson -%}{%- endif -%}{%- set ns.system_prompt = ns.system_prompt + tool -%}{%- if not loop.last -%}{%- set ns.system_prompt = ns.system_prompt + ", " -%}{%- endif -%}{%- endfor -%}{%- set ns.system_prompt = ns.system_prompt + "]" -%}{%- endif -%}
{%- if ns.system_prompt -%}{{- "<|im_start|>system\\n" + ns.system_prompt + "<|im_end|>\\n" -}}{%- endif -%}
{%- for message in messages -%}{{- "<|im_start|>" + message["role"] + "\\n" -}}{%- set content = message["content"] -%}{%- if content is not string -%}{%- set content = content | tojson -%}{%- endif -%}{{- content + "<|im_end|>\\n" -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}"""
FORMATS["Functionary"] = """{% for message in messages %}{%- filter trim %}
{{ message.role }}{% if message.tool_calls %}{% for call in message.tool_calls %}>>>{{ call.function.name }}
{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson(sort_keys=true) }}{% endfor %}{% endif %}
 {{ message.content or '' }}
{% endfilter %}|{% endfor %}"""
FORMATS["Nanbeige"] = """{%- set msgs = messages | selectattr('role', 'in', ['user', 'assistant', 'tool']) | list -%}{{ msgs | length }}{%- for m in msgs | batch(2) %}
{{ loop.index }}:{% for x in m %}{{ ' ' ~ x.role[0] | upper ~ x.content[:3] }}{% endfor %}{%- endfor %}{%- for role, group in msgs | groupby('role') %}
{{ role }}={{ group | length }}{%- endfor %}"""
FORMATS["Ministral reasoning"] = """{%- for message in messages %}
{%- if message.role == 'assistant' -%}
[THINK]{{ message.reasoning_content | default(message.thinking, true) | default('', true) }}[/THINK]{{ message.content }}</s>
{%- else -%}
[{{ message.role | upper }}]{{ message.content if message.content is string else (message.content | map(attribute='text', default='[IMG]') | join) }}[/{{ message.role | upper }}]
{%- endif -%}
{%- endfor -%}"""
FORMATS["SmolLM3"] = """{%- set today = strftime_now("%Y") if not date_string is defined else date_string -%}
{%- set mode = 'no' if (enable_thinking is defined and not enable_thinking) or (messages[0].role == 'system' and '/no_think' in messages[0].content) else 'yes' -%}
{{- 'think: ' ~ mode ~ ' ' ~ (today | length > 0) ~ '\\n' -}}
{%- for m in messages -%}{%- set content = m.content if m.content is string else '' -%}{%- generation -%}{%- if m.role == 'assistant' -%}{{ content ~ '<|im_end|>' }}{%- endif -%}{%- endgeneration -%}{%- if m.role != 'assistant' -%}{{- m.role ~ '\\n' ~ content.replace('/no_think', '').rstrip() ~ '<|im_end|>\\n' -}}{%- endif -%}{%- endfor -%}"""
FORMATS["Training with tags"] = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{ message.content ~ '<|im_end|>' }}{%- endgeneration %}
{%- else %}{{- message.content ~ '<|im_end|>' }}{%- endif %}
{{- '\\n' }}
{%- endfor %}"""
FORMATS["Tags in a macro"] = """{%- macro answer(text) %}[{% generation %}{{ text }}{% endgeneration %}]{% endmacro -%}
{%- for m in messages %}{{ m.role }}:{{ answer(m.content) if m.role == 'assistant' else m.content }};{% endfor %}{% set kept %}{% generation %}é{% endgeneration %}{% endset %}{{ kept }}"""
FORMATS["Tags in one another"] = """{% for m in messages %}{% generation %}a{% generation %}{{ m.role }}{% endgeneration %}b{% set x = 1 %}{% endgeneration %}{{ x is defined }}{% endfor %}"""
FORMATS["Recursive schema"] = """{%- for name, spec in (tools[0].function.parameters.properties if tools else {}).items() recursive -%}
{{ name }}({{ loop.depth }}){% if spec.properties %}<{{ loop(spec.properties.items()) }}>{% endif %}{{ ',' if not loop.last }}
{%- endfor -%}{{ messages | length }}"""
FORMATS["Cohere Aya 23"] = """{{ bos_token }}{%- for m in messages -%}{%- set token = '<|USER_TOKEN|>' if m.role == 'user' else ('<|CHATBOT_TOKEN|>' if m.role == 'assistant' else '<|SYSTEM_TOKEN|>') -%}
<|START_OF_TURN_TOKEN|>{{ token }}{{ m['content'].strip() }}<|END_OF_TURN_TOKEN|>{%- endfor -%}
{%- if add_generation_prompt -%}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{%- endif -%}"""
FORMATS["DBRX"] = """{% for message in messages %}{{ '\n<|im_start|>' ~ message.role ~ '\n' if not loop.first else '<|im_start|>' ~ message.role ~ '\n' }}{% with text = message.content if message.content is string else '' %}{{ text | replace('<|im_end|>', '') | trim }}{% endwith %}<|im_end|>{% endfor %}{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""
FORMATS["Reka"] = """{%- set names = dict(user='human', assistant='assistant', system='system') -%}
{%- for m in messages %}{% if m.role in names %}{{ names[m.role] }}: {{ m.content if m.content else '(empty)' }} <sep> {% else %}{{ m | tojson(sort_keys=true) }}{% endif %}{% endfor -%}
{{ messages | selectattr('role', 'eq', 'user') | list | count }}/{{ messages | count }}"""
FORMATS["Windows lines"] = "{%- for m in messages %}\r\n{{ m.role }}:\r\n  {{ m.content }}\r\n{%- endfor %}\r\n{% if add_generation_prompt %}\r\nassistant:\r\n{% endif %}\r\n"
