//! Draws the picture as SVG, with a small script to pan and zoom.

use std::fmt::Write;

use super::layout::{BOX_HEIGHT, Layout, Place, layout, shown};
use super::{ArrowKind, Picture, colours};

const SCRIPT: &str = include_str!("view.js");

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
             style=\"touch-action:none;user-select:none\" \
             font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"12\">"
        );
        out.push_str(
            "<defs>\
             <marker id=\"met\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto-start-reverse\"><path d=\"M0 0L10 5L0 10z\" fill=\"Black\"/></marker>\
             <marker id=\"unmet\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"5\" markerHeight=\"5\" orient=\"auto-start-reverse\"><path d=\"M0 0L10 5L0 10z\" fill=\"Red\"/></marker>\
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

    /// Unmet dependencies explain why a value waits: they are drawn on top, with lines of the same
    /// width at every zoom level.
    fn draw_arrows(&self, out: &mut String, layout: &Layout) {
        for kind in [ArrowKind::Derives, ArrowKind::Met, ArrowKind::Unmet] {
            let style = match kind {
                ArrowKind::Met => {
                    "stroke=\"Black\" stroke-opacity=\"0.45\" marker-end=\"url(#met)\""
                }
                ArrowKind::Unmet => {
                    "stroke=\"Red\" stroke-width=\"2\" vector-effect=\"non-scaling-stroke\" \
                     marker-end=\"url(#unmet)\""
                }
                ArrowKind::Derives => {
                    "stroke=\"#8B7D6B\" stroke-opacity=\"0.75\" marker-end=\"url(#derives)\""
                }
            };
            for arrow in self.arrows.iter().filter(|arrow| arrow.kind == kind) {
                let (from, to) = (layout.places[arrow.from], layout.places[arrow.to]);
                let _ = writeln!(out, "<path d=\"{}\" fill=\"none\" {style}/>", curve(from, to));
            }
        }
    }

    fn draw_figure(&self, out: &mut String, index: usize, place: Place) {
        let figure = &self.figures[index];
        let (fill, border, text, dashed) = colours(figure);
        let (border, stroke) = match (figure.touched, figure.placeholder) {
            (true, _) => ("Gold", 3),
            (false, true) => (border, 2),
            (false, false) => (border, 1),
        };
        let dash = if dashed { " stroke-dasharray=\"5 3\"" } else { "" };
        let stays = figure.touched || figure.placeholder;
        let thick = if stays { " vector-effect=\"non-scaling-stroke\"" } else { "" };
        let round = if figure.derived { 9 } else { 0 };
        let tooltip = format!("[{}] {}\n{}", figure.state, figure.key, figure.value);
        let _ = writeln!(
            out,
            "<a href=\"{}\"><title>{}</title>\
             <rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BOX_HEIGHT}\" rx=\"{round}\" fill=\"{fill}\" \
             stroke=\"{border}\" stroke-width=\"{stroke}\"{dash}{thick}/>\
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

/// Text escaped for XML. Characters that XML does not allow are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(letter),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            _ if letter.is_control() => out.push('\u{fffd}'),
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::{Arrow, Figure};
    use super::*;
    use crate::state::ValueState;

    fn figure(key: &str, placeholder: bool) -> Figure {
        Figure {
            key: key.to_owned(),
            label: key.to_owned(),
            cluster: if placeholder { String::new() } else { "d1".to_owned() },
            state: if placeholder { ValueState::Nonexistent } else { ValueState::Pending },
            derived: false,
            value: String::new(),
            touched: false,
            placeholder,
        }
    }

    fn picture(figures: Vec<Figure>, arrows: Vec<Arrow>) -> Picture {
        let (title, footer) = ("title".to_owned(), "footer".to_owned());
        Picture { title, footer, at: Timestamp::UNIX_EPOCH, figures, arrows }
    }

    #[test]
    fn whatever_a_key_holds_the_picture_is_well_formed() {
        let nasty = "a<b>&\"c\"\u{1}\u{7f}\u{ffff}]]>";
        let svg = picture(vec![figure(nasty, false)], vec![]).svg();
        assert!(
            svg.contains("a&lt;b&gt;&amp;&quot;c&quot;\u{fffd}\u{fffd}\u{fffd}]]&gt;"),
            "{svg}"
        );
        assert_eq!(svg.matches("]]>").count(), 1, "the script ends where it should");
    }

    #[test]
    fn unmet_dependencies_are_drawn_above_met_ones_and_stay_visible_when_zoomed_out() {
        let figures = vec![figure("a", false), figure("b", false), figure("c", true)];
        let arrow = |from, to, kind| Arrow { from, to, kind };
        let arrows = vec![
            arrow(0, 2, ArrowKind::Unmet),
            arrow(0, 1, ArrowKind::Met),
            arrow(1, 0, ArrowKind::Derives),
        ];
        let svg = picture(figures, arrows).svg();
        let (_, drawn) = svg.split_once("</defs>").unwrap();
        let place = |text: &str| drawn.find(text).unwrap();
        assert!(place("url(#derives)") < place("url(#met)"));
        assert!(place("url(#met)") < place("url(#unmet)"));
        let red: Vec<_> = drawn.lines().filter(|line| line.contains("\"Red\"")).collect();
        assert_eq!(red.len(), 2, "an arrow and what it misses");
        assert!(red.iter().all(|line| line.contains("non-scaling-stroke")), "{red:?}");
    }
}
