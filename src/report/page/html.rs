//! The page of HTML: everything is in it, so that it can be mailed, archived and printed.

use super::charts::{self, legend};
use super::report::Report;
use super::tables::{Section, TIMES, sections};
use crate::svg::escaped;
use std::fmt::Write;

const STYLE: &str = "
:root{color-scheme:light dark;--lightness:42%;--fg:#1b1f24;--bg:#fff;--soft:#667;--line:#d6dae0;--panel:#f5f7f9}
@media (prefers-color-scheme:dark){:root{--lightness:66%;--fg:#e4e7eb;--bg:#14171b;--soft:#9aa3ad;--line:#363c44;--panel:#1d2126}}
@media print{:root{--lightness:38%;--fg:#000;--bg:#fff;--soft:#444;--line:#bbb;--panel:#fff}.controls{display:none}figure,tr{break-inside:avoid}}
body{margin:0 auto;padding:1rem;max-width:1400px;font:15px/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg)}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
.scroll{overflow-x:auto;background:
linear-gradient(90deg,var(--bg) 40%,transparent) 0/3rem 100% no-repeat local,linear-gradient(270deg,var(--bg) 40%,transparent) 100%/3rem 100% no-repeat local,
linear-gradient(90deg,var(--line),transparent) 0/.8rem 100% no-repeat,linear-gradient(270deg,var(--line),transparent) 100%/.8rem 100% no-repeat}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{color:var(--soft);font-weight:600;vertical-align:bottom}td{min-width:14rem;max-width:42rem;overflow-wrap:break-word}td.n{min-width:0;white-space:nowrap}
.scroll tr>:first-child{position:sticky;left:0;background:var(--bg)}
p.note{color:var(--soft);font-size:.85rem;max-width:70rem;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:1rem}
figure{margin:0;padding:.6rem;background:var(--panel);border-radius:6px;min-width:0}
figcaption{font-weight:600;margin-bottom:.3rem}
svg{display:block;width:100%;height:auto;max-width:900px}svg text.t{fill:var(--soft);font-size:12px}
svg .g{stroke:var(--line)}svg polyline{fill:none;stroke-width:1.5;stroke-linejoin:round}
svg polyline.raw{opacity:.22}
figure svg[class]{display:none}
@media (max-width:600px){svg{overflow:visible}svg text.t{font-size:15px}figure svg text.t{font-size:17px}
th,td{padding:.25rem .4rem}td{min-width:11rem}.scroll tr>:first-child{min-width:0;max-width:8.5rem;white-space:normal}}
.controls{position:sticky;top:0;z-index:1;background:var(--bg);padding:.5rem 0;display:flex;flex-wrap:wrap;gap:.4rem 1.4rem;align-items:center}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.85rem;margin:.4rem 0}
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;margin-right:.35rem;vertical-align:-1px}
";

/// The switch of the axis, and smoothing: an exponential mean over the drawn points, without the
/// bias of its first values.
const SCRIPT: &str = "
(()=>{const all=(s)=>[...document.querySelectorAll(s)];
all('input[name=x]').forEach(i=>i.addEventListener('change',()=>{document.body.dataset.x=i.value}));
const slider=document.getElementById('smooth'),shown=document.getElementById('smooth-value');
const lines=all('polyline.d').map(raw=>({raw,points:raw.getAttribute('points').trim().split(' ').map(p=>p.split(',').map(Number))}));
slider.addEventListener('input',()=>{const a=+slider.value;shown.textContent=a.toFixed(2);
for(const l of lines){if(l.mean){l.mean.remove();l.mean=null}
l.raw.classList.toggle('raw',a>0);if(a===0)continue;
let m=0,w=0;const out=l.points.map(([x,y])=>{m=a*m+(1-a)*y;w=a*w+(1-a);return x+','+(m/w).toFixed(1)});
l.mean=l.raw.cloneNode(false);l.mean.setAttribute('class','mean');l.mean.setAttribute('points',out.join(' '));l.raw.after(l.mean)}})})();
";

/// The page.
pub fn html(report: &Report) -> String {
    let axes = charts::axes(report);
    let first = axes.first().map_or("step", |axis| axis.key());
    let title = escaped(&report.title());
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}"
    );
    for axis in &axes {
        let key = axis.key();
        let _ = writeln!(
            html,
            "body[data-x={key}] figure svg.x-{key}{{display:block}}"
        );
    }
    let _ = write!(
        html,
        "</style>\n</head>\n<body data-x=\"{first}\">\n<h1>{title}</h1>\n"
    );
    let names = report.runs.iter().enumerate();
    html.push_str(&legend(
        names.map(|(index, run)| (charts::color(index), run.name.as_str())),
    ));
    let mut sections = sections(report).into_iter();
    if let Some(runs) = sections.next() {
        html.push_str(&section_html(&runs, ""));
    }
    if let Some(bars) = charts::throughput(report) {
        let _ = write!(html, "<h2>Throughput</h2>\n{bars}");
    }
    let curves = charts::curves(report);
    if !curves.is_empty() {
        html.push_str("<h2>Curves</h2>\n<div class=\"controls\"><span>against ");
        for axis in &axes {
            let key = axis.key();
            let checked = if key == first { " checked" } else { "" };
            let _ = write!(
                html,
                "<label><input type=\"radio\" name=\"x\" value=\"{key}\"{checked}>{key}</label> "
            );
        }
        html.push_str(
            "</span><label>smoothing <input id=\"smooth\" type=\"range\" min=\"0\" max=\"0.99\" step=\"0.01\" value=\"0\"> \
             <output id=\"smooth-value\">0.00</output></label></div>\n<div class=\"charts\">\n",
        );
        html.push_str(&curves);
        html.push_str("</div>\n");
    }
    for section in sections {
        let drawing = if section.title == TIMES {
            charts::times(report).unwrap_or_default()
        } else {
            String::new()
        };
        html.push_str(&section_html(&section, &drawing));
    }
    if !curves.is_empty() {
        let _ = writeln!(html, "<script>{SCRIPT}</script>");
    }
    html.push_str("</body>\n</html>\n");
    html
}

/// A drawing with the table of its numbers, under a heading of its own.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// None without one.
    pub title: String,
    /// An SVG element, or nothing.
    pub drawing: String,
    /// Colours, as CSS, and what they mean.
    pub legend: Vec<(String, String)>,
    /// The first row is the header.
    pub rows: Vec<Vec<String>>,
    /// Below all that.
    pub notes: Vec<String>,
}

/// A page of figures in the same style, each sentence of the introduction a line.
pub fn document(title: &str, intro: &[String], figures: &[Figure]) -> String {
    let title = escaped(title);
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    html.push_str(&notes(intro));
    for figure in figures {
        if !figure.title.is_empty() {
            let _ = writeln!(html, "<h2>{}</h2>", escaped(&figure.title));
        }
        if !figure.legend.is_empty() {
            let entries = figure.legend.iter();
            html.push_str(&legend(
                entries.map(|(color, name)| (color.clone(), name.as_str())),
            ));
        }
        html.push_str(&figure.drawing);
        html.push_str(&table_html(&figure.rows));
        html.push_str(&notes(&figure.notes));
    }
    html.push_str("</body>\n</html>\n");
    html
}

fn notes(lines: &[String]) -> String {
    let line = |note: &String| format!("<p class=\"note\">{}</p>\n", escaped(note));
    lines.iter().map(line).collect()
}

/// The first row is the header; nothing of no rows.
fn table_html(rows: &[Vec<String>]) -> String {
    let mut html = String::new();
    for (index, row) in rows.iter().enumerate() {
        html.push_str("<tr>");
        for (column, text) in row.iter().enumerate() {
            // Numbers and short words stay on their line.
            let (cell, class) = match (index, text.len() < 48) {
                (0, _) => ("th", ""),
                (_, true) => ("td", " class=\"n\""),
                (_, false) => ("td", ""),
            };
            let text = if index > 0 && column == 0 {
                breakable(text)
            } else {
                escaped(text)
            };
            let _ = write!(html, "<{cell}{class}>{text}</{cell}>");
        }
        html.push_str("</tr>\n");
    }
    match rows {
        [] => html,
        _ => format!("<div class=\"scroll\"><table>\n{html}</table></div>\n"),
    }
}

/// A name with places where a narrow screen may break its line, some ten characters apart: those of
/// runs and settings have no spaces.
fn breakable(name: &str) -> String {
    let (mut text, mut piece) = (String::new(), 0);
    for part in name.split_inclusive(['_', '=', ',']) {
        text.push_str(&escaped(part));
        piece += part.len();
        if piece >= 10 {
            text.push_str("<wbr>");
            piece = 0;
        }
    }
    text
}

fn section_html(section: &Section, drawing: &str) -> String {
    let mut html = format!("<h2>{}</h2>\n{drawing}", escaped(section.title));
    if !section.rows.is_empty() {
        let header = std::slice::from_ref(&section.header);
        html.push_str(&table_html(&[header, &section.rows].concat()));
    }
    html.push_str(&notes(&section.notes));
    html
}
