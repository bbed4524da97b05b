//! The picture as SVG, drawn by us, with a small script to pan and zoom.

use std::fmt::Write;

use super::layout::{BOX_HEIGHT, Layout, Place, layout, shown};
use super::{ArrowKind, Picture, colours};

const SCRIPT: &str = "\
(function(){var s=document.documentElement,v=s.getAttribute('viewBox').split(' ').map(Number),d=null,m=false;\
function put(){s.setAttribute('viewBox',v.join(' '))}\
function at(e){var r=s.getBoundingClientRect(),k=Math.max(v[2]/r.width,v[3]/r.height);\
return[v[0]+v[2]/2+(e.clientX-r.left-r.width/2)*k,v[1]+v[3]/2+(e.clientY-r.top-r.height/2)*k,k]}\
s.addEventListener('wheel',function(e){e.preventDefault();var p=at(e),f=Math.pow(1.0015,e.deltaY);\
v=[p[0]-(p[0]-v[0])*f,p[1]-(p[1]-v[1])*f,v[2]*f,v[3]*f];put()},{passive:false});\
s.addEventListener('mousedown',function(e){d=[e.clientX,e.clientY];m=false});\
s.addEventListener('mousemove',function(e){if(!d)return;var k=at(e)[2];\
if(Math.abs(e.clientX-d[0])+Math.abs(e.clientY-d[1])>3)m=true;\
v[0]-=(e.clientX-d[0])*k;v[1]-=(e.clientY-d[1])*k;d=[e.clientX,e.clientY];put()});\
s.addEventListener('mouseup',function(){d=null});\
s.addEventListener('click',function(e){if(m){e.preventDefault();e.stopPropagation()}},true);})();";

impl Picture {
    /// The picture as SVG.
    pub fn svg(&self) -> String {
        let layout = layout(self);
        let (width, height) = (layout.width.max(480.0), layout.height);
        let mut out = String::with_capacity(4096 + self.figures.len() * 600);
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"100%\" height=\"100%\" preserveAspectRatio=\"xMidYMid meet\" \
             font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"12\">"
        );
        out.push_str(
            "<defs>\
             <marker id=\"met\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto-start-reverse\"><path d=\"M0 0L10 5L0 10z\" fill=\"Black\"/></marker>\
             <marker id=\"unmet\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto-start-reverse\"><path d=\"M0 0L10 5L0 10z\" fill=\"Red\"/></marker>\
             <marker id=\"derives\" viewBox=\"0 0 10 10\" refX=\"10\" refY=\"5\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto-start-reverse\"><path d=\"M10 1L1 5L10 9z\" fill=\"White\" stroke=\"#8B7D6B\"/></marker>\
             </defs>\n",
        );
        let _ = writeln!(
            out,
            "<rect x=\"-100000\" y=\"-100000\" width=\"200000\" height=\"200000\" fill=\"White\"/>"
        );
        let _ = writeln!(
            out,
            "<text x=\"24\" y=\"36\" font-size=\"20\">{}</text>",
            escaped(&self.title)
        );
        draw_bands(&mut out, &layout);
        self.draw_arrows(&mut out, &layout);
        for (index, place) in layout.places.iter().enumerate() {
            self.draw_figure(&mut out, index, *place);
        }
        let bottom = height - 12.0;
        let _ = writeln!(
            out,
            "<text x=\"24\" y=\"{bottom:.0}\" fill=\"#555\">{}</text>",
            escaped(&self.footer)
        );
        let _ = writeln!(out, "<script><![CDATA[{SCRIPT}]]></script>\n</svg>");
        out
    }

    fn draw_arrows(&self, out: &mut String, layout: &Layout) {
        for arrow in &self.arrows {
            let (from, to) = (layout.places[arrow.from], layout.places[arrow.to]);
            let (colour, marker) = match arrow.kind {
                ArrowKind::Met => ("Black", "met"),
                ArrowKind::Unmet => ("Red", "unmet"),
                ArrowKind::Derives => ("#8B7D6B", "derives"),
            };
            let _ = writeln!(
                out,
                "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-opacity=\"0.75\" marker-end=\"url(#{marker})\"/>",
                curve(from, to)
            );
        }
    }

    fn draw_figure(&self, out: &mut String, index: usize, place: Place) {
        let figure = &self.figures[index];
        let (fill, border, text, dashed) = colours(figure);
        let (border, stroke) = if figure.touched { ("Gold", 3) } else { (border, 1) };
        let dash = if dashed { " stroke-dasharray=\"5 3\"" } else { "" };
        let round = if figure.derived { 9 } else { 0 };
        let tooltip = format!("[{}] {}\n{}", figure.state, figure.key, figure.value);
        let _ = writeln!(
            out,
            "<a href=\"{}\"><title>{}</title>\
             <rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BOX_HEIGHT}\" rx=\"{round}\" fill=\"{fill}\" \
             stroke=\"{border}\" stroke-width=\"{stroke}\"{dash}/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{text}\">{}</text></a>",
            escaped(&self.timeline_link(&figure.key)),
            escaped(&tooltip),
            place.x,
            place.y,
            place.width,
            place.x + place.width / 2.0,
            place.y + 17.5,
            escaped(&shown(&figure.label)),
        );
    }
}

fn draw_bands(out: &mut String, layout: &Layout) {
    for band in layout.bands.iter().filter(|band| !band.name.is_empty()) {
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"4\" fill=\"#e6ecfa\" stroke=\"#b8c4de\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\" fill=\"#33415e\">{}</text>",
            band.x,
            band.y,
            band.width,
            band.height,
            band.x + 10.0,
            band.y + 20.0,
            escaped(&format!("< {} >", band.name)),
        );
    }
}

/// A line from one box to the other, leaving and arriving on the sides that face each other.
fn curve(from: Place, to: Place) -> String {
    let middle = |place: Place| place.y + BOX_HEIGHT / 2.0;
    let (start, end, bend) = if to.x + to.width <= from.x {
        (from.x, to.x + to.width, -1.0)
    } else if from.x + from.width <= to.x {
        (from.x + from.width, to.x, 1.0)
    } else {
        (from.x, to.x, -1.0)
    };
    let pull = ((end - start).abs() / 2.0).clamp(24.0, 160.0) * bend;
    let back = if to.x + to.width <= from.x || from.x + from.width <= to.x { -pull } else { pull };
    format!(
        "M{start:.1} {:.1}C{:.1} {:.1} {:.1} {:.1} {end:.1} {:.1}",
        middle(from),
        start + pull,
        middle(from),
        end + back,
        middle(to),
        middle(to)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
