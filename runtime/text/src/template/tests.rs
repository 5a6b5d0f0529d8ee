use serde_json::json;

use super::*;

fn render(source: &str, messages: serde_json::Value) -> Result<String, TemplateError> {
    let request = ChatRequest {
        messages,
        bos_token: Some("<s>".into()),
        add_generation_prompt: true,
        now_unix_s: Some(1_753_358_645),
        ..ChatRequest::default()
    };
    ChatTemplate::new(source)?.render(&request)
}

#[test]
fn blocks_take_their_line_with_them() {
    let source = "{{ bos_token }}\n{% for m in messages %}\n  {% if m.role %}\n[{{ m.role }}]\n  {% endif %}\n{% endfor %}\n";
    let out = render(source, json!([{"role": "user"}, {"role": "tool"}])).unwrap();
    assert_eq!(out, "<s>\n[user]\n[tool]\n");
}

#[test]
fn loop_controls_namespaces_macros_and_slices() {
    let source = "{%- macro show(m) -%}<{{ m.content | trim }}>{%- endmacro -%}
{%- set ns = namespace(n=0) -%}
{%- for m in messages[1:] -%}
{%- if m.role == 'skip' %}{% continue %}{% endif -%}
{%- if m.role == 'end' %}{% break %}{% endif -%}
{%- set ns.n = ns.n + 1 -%}
{{- show(m) -}}
{%- endfor -%}
{{ ns.n }}{{ messages[::-1][0].role }}{{ messages|length }}";
    let messages = json!([
        {"role": "system", "content": "s"}, {"role": "user", "content": " a "},
        {"role": "skip", "content": "b"}, {"role": "user", "content": "c\n"},
        {"role": "end", "content": "d"}, {"role": "user", "content": "e"}
    ]);
    assert_eq!(render(source, messages).unwrap(), "<a><c>2user6");
}

#[test]
fn pythons_string_methods() {
    let source = "{% set c = messages[0].content %}{{ c.strip() }}|{{ c.split('b')[-1] }}|\
{{ c.startswith(' a') }}|{{ c.replace('b', 'x').upper() }}|{{ c.lstrip().rstrip('\\n') }}|\
{{ c.removeprefix(' ') }}|{{ c.removesuffix('q') }}|{{ messages[0].get('x', 'none') }}|\
{% for k, v in messages[0].items() %}{{ k }}={{ v is string }},{% endfor %}|{{ none }}{{ 1.0 }}";
    let out = render(source, json!([{"content": " abc\n"}])).unwrap();
    assert_eq!(out, "abc|c\n|True| AXC\n|abc|abc\n| abc\n|none|content=True,|None1.0");
}

#[test]
fn tojson_is_json_dumps() {
    let source = "{{ messages[0] | tojson }}|{{ messages[0].a | tojson(indent=2) }}|\
{{ messages[0] | tojson(ensure_ascii=true, separators=(',', ':')) }}|{{ {'z': 1, 'b': '<&>'} | tojson }}";
    let out = render(source, json!([{"z": "é'<", "a": [1, 2.5]}])).unwrap();
    assert_eq!(
        out,
        "{\"z\": \"é'<\", \"a\": [1, 2.5]}|[\n  1,\n  2.5\n]|{\"z\":\"\\u00e9'<\",\"a\":[1,2.5]}|{\"z\": 1, \"b\": \"<&>\"}"
    );
}

#[test]
fn the_date_is_the_requests() {
    assert_eq!(render("{{ strftime_now('%d %b %Y') }}", json!([])).unwrap(), "24 Jul 2025");
}

#[test]
fn generation_tags_print_nothing() {
    let source = "a{% generation %}b{{ 'x' }}{% endgeneration %}c\n  {%- generation -%}  d  {%- endgeneration -%} e";
    assert_eq!(render(source, json!([])).unwrap(), "abxcde");
}

#[test]
fn refusals_and_mistakes_say_what_and_where() {
    let raised = render("{{ raise_exception('roles must alternate') }}", json!([]));
    assert_eq!(raised, Err(TemplateError::Raised { message: "roles must alternate".into() }));
    let nested = "{% macro f() %}{{ raise_exception('in macro') }}{% endmacro %}{{ f() }}";
    let nested = render(nested, json!([]));
    assert_eq!(nested, Err(TemplateError::Raised { message: "in macro".into() }));
    match render("a\n{% if %}", json!([])) {
        Err(TemplateError::Syntax { line: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
    match render("a\nb\n{{ messages[0].content + 1 }}", json!([{"content": "x"}])) {
        Err(TemplateError::Render { line: 3, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn endless_work_is_stopped() {
    let source = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
{% endfor %}{% endfor %}{% endfor %}";
    assert!(matches!(render(source, json!([])), Err(TemplateError::Render { .. })));
}

#[test]
fn absent_tools_are_none_and_kwargs_win() {
    let template = ChatTemplate::new(
        "{{ tools is none }}{{ tools is defined }}{{ enable_thinking }}{{ bos_token }}",
    )
    .unwrap();
    let mut request = ChatRequest { bos_token: Some("<s>".into()), ..ChatRequest::default() };
    request.kwargs.insert("enable_thinking".into(), false.into());
    request.kwargs.insert("bos_token".into(), "B".into());
    assert_eq!(template.render(&request).unwrap(), "TrueTrueFalseB");
}

#[test]
fn a_guarded_render_is_the_plain_one_with_marks() {
    let source = "{% for m in messages %}<|x|>{{ m.content | trim }}{{ m | tojson(ensure_ascii=true) }}{% endfor %}";
    let template = ChatTemplate::new(source).unwrap();
    let messages = json!([{"content": "  <|x|> é\u{1F030}\n"}]);
    let request = ChatRequest { messages, ..ChatRequest::default() };
    let guarded = template.render_guarded(&request, &["<|x|>"]).unwrap();
    assert_eq!(guarded.text(), template.render(&request).unwrap());
    assert_eq!(guarded.mark(), '\u{1F031}');
    assert!(guarded.marked().starts_with("<|x|><\u{1F031}|x|> é"));
}
