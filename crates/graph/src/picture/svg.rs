//! Draws a view of the graph as SVG.
//!
//! Colours are set twice: by attributes, for programs that only know those, and by the style sheet,
//! which knows about light and dark screens. Every text comes from outside and is escaped.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::layout::{BOX_HEIGHT, LETTER, Layout, Point, Rect, layout};
use super::options::{ViewOptions, encoded};
use super::place::{Plan, Spot};
use super::scene::{Scene, SceneBox, grouped, named, scene};
use super::{ArrowKind, Figure, Picture, colours};
use crate::state::ValueState;

pub(super) const STYLE: &str = include_str!("picture.css");

/// The radius of the corners of lines.
const CORNER: f64 = 6.0;
/// The space inside a box besides its label.
const INSIDE: f64 = 40.0;
/// The height of title and legend above a picture that stands alone.
const HEAD: f64 = 76.0;

impl Picture {
    /// The picture as SVG, with title and legend, and large bands collapsed.
    pub fn svg(&self) -> String {
        self.svg_view(&ViewOptions::default())
    }

    /// One view as SVG that stands alone.
    pub(crate) fn svg_view(&self, options: &ViewOptions) -> String {
        let (scene, layout) = self.laid_out(options);
        let legend = self.counts();
        let width =
            layout.width.max(legend.len() as f64 * 150.0).max(self.title.len() as f64 * 11.0);
        let (width, height) = (width + 24.0, layout.height + HEAD + 36.0);
        let mut out = String::with_capacity(8192 + scene.boxes.len() * 700);
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"graph alone\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"12\">\n\
             <style>{STYLE}</style>\n\
             <rect class=\"paper\" width=\"100%\" height=\"100%\" fill=\"White\"/>\n\
             <text class=\"title\" x=\"24\" y=\"34\" font-size=\"18\">{}</text>",
            escaped(&self.title)
        );
        for (place, (state, count)) in legend.iter().enumerate() {
            let x = 30.0 + place as f64 * 150.0;
            let _ = writeln!(
                out,
                "<g class=\"box {}\"><circle class=\"dot\" cx=\"{x:.0}\" cy=\"56\" r=\"5\" fill=\"{}\"/></g>\
                 <text class=\"note\" x=\"{:.0}\" y=\"60\" fill=\"#555\">{} {}</text>",
                class_of(*state),
                state_colour(*state),
                x + 12.0,
                grouped(*count),
                state.name().to_lowercase(),
            );
        }
        let _ = writeln!(out, "<g transform=\"translate(0 {HEAD})\">");
        self.draw(&mut out, options, &scene, &layout);
        let _ = writeln!(
            out,
            "</g>\n<text class=\"note\" x=\"24\" y=\"{:.0}\" fill=\"#555\">{}</text>\n</svg>",
            height - 14.0,
            escaped(&self.footer)
        );
        out
    }

    /// One view as SVG to be part of a page.
    #[cfg(feature = "rest")]
    pub(super) fn svg_part(&self, options: &ViewOptions, scene: &Scene, layout: &Layout) -> String {
        let mut out = String::with_capacity(4096 + scene.boxes.len() * 700);
        let _ = writeln!(
            out,
            "<svg id=\"picture\" class=\"graph\" viewBox=\"0 0 {:.0} {:.0}\" role=\"group\" aria-label=\"{}\">",
            layout.width.max(1.0),
            layout.height.max(1.0),
            escaped(&self.title)
        );
        self.draw(&mut out, options, scene, layout);
        out.push_str("</svg>");
        out
    }

    pub(super) fn laid_out(&self, options: &ViewOptions) -> (Scene, Layout) {
        let scene = scene(self, options);
        let spots = scene.boxes.iter().map(|one| Spot {
            band: one.band,
            beside: one.beside,
            width: letters(&one.label) * LETTER + INSIDE + if one.is_tile() { 14.0 } else { 0.0 },
        });
        let title = |band: &super::scene::SceneBand| {
            (letters(&band.name) + letters(&grouped(band.values)) + 2.0) * 8.0
                + if band.open.is_empty() { 0.0 } else { 48.0 }
        };
        let plan = Plan {
            spots: spots.collect(),
            links: scene.lines.iter().map(|line| (line.from, line.to)).collect(),
            titles: scene.bands.iter().map(title).collect(),
        };
        let layout = layout(&plan);
        (scene, layout)
    }

    /// The number of values in each state that occurs.
    pub(super) fn counts(&self) -> BTreeMap<ValueState, usize> {
        let mut counts = BTreeMap::new();
        for figure in self.figures.iter().filter(|figure| !figure.placeholder) {
            *counts.entry(figure.state).or_default() += 1;
        }
        counts
    }

    fn draw(&self, out: &mut String, options: &ViewOptions, scene: &Scene, layout: &Layout) {
        out.push_str(
            "<defs>\
             <marker id=\"met\" class=\"met\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerUnits=\"userSpaceOnUse\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\"><path d=\"M0 1L10 5L0 9z\" fill=\"Black\"/></marker>\
             <marker id=\"unmet\" class=\"unmet\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerUnits=\"userSpaceOnUse\" markerWidth=\"9\" markerHeight=\"9\" orient=\"auto\"><path d=\"M0 1L10 5L0 9z\" fill=\"Red\"/></marker>\
             <marker id=\"derives\" class=\"derives\" viewBox=\"0 0 10 10\" refX=\"1\" refY=\"5\" markerUnits=\"userSpaceOnUse\" markerWidth=\"9\" markerHeight=\"9\" orient=\"auto\"><path d=\"M1 1L9 5L1 9z\" fill=\"White\" stroke=\"#8B7D6B\"/></marker>\
             </defs>\n",
        );
        draw_bands(out, options, scene, layout);
        // Unmet dependencies explain why a value waits: they are drawn on top.
        for kind in [ArrowKind::Derives, ArrowKind::Met, ArrowKind::Unmet] {
            draw_lines(out, scene, layout, kind);
        }
        for (index, (one, place)) in scene.boxes.iter().zip(&layout.boxes).enumerate() {
            self.draw_box(out, options, index, one, place);
        }
    }

    fn draw_box(
        &self,
        out: &mut String,
        options: &ViewOptions,
        index: usize,
        one: &SceneBox,
        place: &Rect,
    ) {
        let Some(first) = one.members.first().map(|first| &self.figures[*first]) else { return };
        let touched = one.members.iter().any(|member| self.figures[*member].touched);
        let (fill, border, text, dashed) = colours(first);
        let (border, width) = if touched { ("Gold", 3) } else { (border, 1) };
        let (Rect { x, y, width: wide, .. }, tall) = (*place, BOX_HEIGHT);
        let link = match one.is_tile() {
            true => options.opening(&first.key).link(),
            false => self.timeline_link(&first.key),
        };
        let _ = write!(
            out,
            "<a class=\"box {}\" href=\"{}\" data-box=\"{index}\"><title>{}</title>",
            classes(first, one.is_tile(), touched),
            escaped(&link),
            escaped(&self.tooltip(one, first)),
        );
        let round = if first.derived { tall / 2.0 } else { 5.0 };
        if one.is_tile() {
            for step in [5.0, 2.5] {
                let _ = write!(
                    out,
                    "<rect class=\"under\" x=\"{:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"{tall}\" rx=\"{round}\" fill=\"{fill}\" stroke=\"{border}\"/>",
                    x + step,
                    y + step
                );
            }
        }
        let dash = if dashed { " stroke-dasharray=\"5 3\"" } else { "" };
        let _ = write!(
            out,
            "<rect class=\"face\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{tall}\" rx=\"{round}\" \
             fill=\"{fill}\" stroke=\"{border}\" stroke-width=\"{width}\"{dash}/>\
             <circle class=\"dot\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{border}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{text}\">{}</text>",
            x + 14.0,
            y + tall / 2.0,
            x + 25.0,
            y + tall / 2.0 + 4.2,
            escaped(&shown(&one.label)),
        );
        if one.is_tile() {
            let (mark_x, mark_y) = (x + wide - 15.0, y + tall / 2.0);
            let _ = write!(
                out,
                "<path class=\"mark\" d=\"M{mark_x:.1} {:.1}l4 4l-4 4\" fill=\"none\" stroke=\"{text}\"/>",
                mark_y - 4.0
            );
        }
        out.push_str("</a>\n");
    }

    fn tooltip(&self, one: &SceneBox, first: &Figure) -> String {
        if !one.is_tile() {
            return format!("[{}] {}\n{}", first.state, first.key, clipped(&first.value));
        }
        let last = one.members.last().map(|last| self.figures[*last].key.as_str());
        let kind = if first.placeholder { "missing".to_owned() } else { named(first) };
        format!(
            "{} {kind}: {} – {}\nSelect to open",
            grouped(one.members.len()),
            first.key,
            last.unwrap_or_default()
        )
    }

    /// The address of the timeline of a key at the time of the picture, relative to the picture's.
    pub(super) fn timeline_link(&self, key: &str) -> String {
        format!("key-timeline?key={}&time={}", encoded(key), self.at.as_nanosecond())
    }
}

fn draw_bands(out: &mut String, options: &ViewOptions, scene: &Scene, layout: &Layout) {
    for (band, place) in scene.bands.iter().zip(&layout.bands) {
        let Rect { x, y, width, height } = place;
        let name = if band.name.is_empty() { "no descriptor" } else { &band.name };
        let _ = write!(
            out,
            "<g class=\"band\"><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"9\" fill=\"#e6ecfa\" stroke=\"#b8c4de\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\" fill=\"#33415e\">{} <tspan class=\"count\">{}</tspan></text>",
            x + 12.0,
            y + 20.0,
            escaped(&shown(name)),
            grouped(band.values),
        );
        if !band.open.is_empty() {
            let mut closed = options.clone();
            closed.open.retain(|key| !band.open.contains(key));
            let _ = write!(
                out,
                "<a class=\"close\" href=\"{}\"><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">close</text></a>",
                escaped(&closed.link()),
                x + width - 12.0,
                y + 20.0
            );
        }
        out.push_str("</g>\n");
    }
}

fn draw_lines(out: &mut String, scene: &Scene, layout: &Layout, kind: ArrowKind) {
    let (class, style) = match kind {
        ArrowKind::Met => {
            ("met", "stroke=\"Black\" stroke-opacity=\"0.45\" marker-end=\"url(#met)\"")
        }
        ArrowKind::Unmet => ("unmet", "stroke=\"Red\" marker-end=\"url(#unmet)\""),
        ArrowKind::Derives => ("derives", "stroke=\"#8B7D6B\" marker-start=\"url(#derives)\""),
    };
    for (index, (line, way)) in scene.lines.iter().zip(&layout.lines).enumerate() {
        if line.kind != kind {
            continue;
        }
        let any = if line.any { " any" } else { "" };
        let width = (1.3 + (line.count as f64).log2() * 0.2).min(2.8);
        let _ = writeln!(
            out,
            "<path class=\"line {class}{any}\" data-line=\"{index}\" d=\"{}\" fill=\"none\" stroke-width=\"{width:.1}\" {style}/>",
            path(way)
        );
    }
}

/// A line with rounded corners.
fn path(corners: &[Point]) -> String {
    let mut out = String::new();
    let Some((first, rest)) = corners.split_first() else { return out };
    let _ = write!(out, "M{:.1} {:.1}", first.0, first.1);
    let mut last = *first;
    for (index, corner) in rest.iter().enumerate() {
        let Some(next) = rest.get(index + 1) else {
            let _ = write!(out, "L{:.1} {:.1}", corner.0, corner.1);
            break;
        };
        let before = towards(*corner, last);
        let after = towards(*corner, *next);
        let _ = write!(
            out,
            "L{:.1} {:.1}Q{:.1} {:.1} {:.1} {:.1}",
            before.0, before.1, corner.0, corner.1, after.0, after.1
        );
        last = *corner;
    }
    out
}

/// The point on the way from a corner to another where its rounding begins.
fn towards(corner: Point, other: Point) -> Point {
    let (x, y) = (other.0 - corner.0, other.1 - corner.1);
    let length = x.abs() + y.abs();
    let part = if length == 0.0 { 0.0 } else { (CORNER / length).min(0.5) };
    (corner.0 + x * part, corner.1 + y * part)
}

fn classes(figure: &Figure, tile: bool, touched: bool) -> String {
    let mut classes = match figure.placeholder {
        true => "absent".to_owned(),
        false => class_of(figure.state),
    };
    for (is, class) in [
        (figure.derived, " derived"),
        (tile, " tile"),
        (touched, " touched"),
        (figure.uncertain, " uncertain"),
    ] {
        if is {
            classes.push_str(class);
        }
    }
    classes
}

pub(super) fn class_of(state: ValueState) -> String {
    state.name().to_lowercase()
}

/// The colour of a state where there is no style sheet.
fn state_colour(state: ValueState) -> &'static str {
    match state {
        ValueState::Configured => "PaleGreen",
        ValueState::Obtained => "LightCyan",
        ValueState::Discovered => "Lime",
        ValueState::Pending => "Pink",
        ValueState::Invalid => "Maroon",
        ValueState::Failed => "OrangeRed",
        ValueState::Retrying => "DeepPink",
        ValueState::Missing => "DimGray",
        ValueState::Unimplemented => "DarkKhaki",
        ValueState::Removed | ValueState::Nonexistent => "Black",
    }
}

/// The label as it is shown: a long one is cut in the middle.
pub(super) fn shown(label: &str) -> String {
    let letters: Vec<char> = label.chars().collect();
    if letters.len() <= 32 {
        return label.to_owned();
    }
    let head: String = letters[..13].iter().collect();
    let tail: String = letters[letters.len() - 18..].iter().collect();
    format!("{head}…{tail}")
}

fn letters(label: &str) -> f64 {
    shown(label).chars().count() as f64
}

/// The beginning of a long value.
fn clipped(value: &str) -> String {
    match value.char_indices().nth(400) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

/// Text escaped for XML and HTML, in text and in attributes. Characters that XML does not allow are
/// replaced.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(letter),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            _ if letter.is_control() => out.push('\u{fffd}'),
            _ => out.push(letter),
        }
    }
    out
}
