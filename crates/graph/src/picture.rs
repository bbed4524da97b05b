//! The graph as a picture: values, arrows between them, and the views that draw them.
//!
//! [`Picture`] holds all values and arrows of one moment. A view decides which boxes and lines that
//! makes (`scene`), where they stand (`place`), how lines run between them (`route`, `layout`), and
//! writes them down (`svg`, `page`). These decisions are functions over plain data. `dot` writes the
//! picture for Graphviz, which decides for itself.

mod dot;
mod layout;
#[cfg_attr(
    not(any(test, feature = "rest")),
    expect(dead_code, reason = "only the page chooses views")
)]
mod options;
#[cfg(feature = "rest")]
mod page;
mod place;
mod rank;
mod route;
mod scene;
mod svg;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use jiff::Timestamp;

#[cfg(feature = "rest")]
pub(crate) use self::options::{Only, ViewOptions};
#[cfg(feature = "rest")]
pub(crate) use self::page::{PICTURE_POLICY, POLICY, SLIDER};
use crate::graph::{EdgeTarget, Graph};
use crate::history::RevisionView;
use crate::key::Key;
use crate::record::TransactionRecord;
use crate::registry::Registry;
use crate::state::ValueState;

/// One value in the picture.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    pub(crate) key: String,
    pub(crate) label: String,
    pub(crate) cluster: String,
    pub(crate) state: ValueState,
    pub(crate) derived: bool,
    pub(crate) value: String,
    pub(crate) touched: bool,
    /// Whether it is only the target of a dependency that does not exist.
    pub(crate) placeholder: bool,
    /// Whether the south may differ: the last operation was interrupted.
    pub(crate) uncertain: bool,
}

impl Figure {
    /// Whether the value is as it should be, as far as is known.
    pub(crate) fn is_well(&self) -> bool {
        use ValueState as S;
        !self.uncertain && matches!(self.state, S::Configured | S::Obtained | S::Discovered)
    }
}

/// One arrow in the picture, between figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Arrow {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) kind: ArrowKind,
    /// Whether any of several values would do, and this is the one that does.
    pub(crate) any: bool,
}

impl Arrow {
    /// The dependent and its dependency. A derived value depends on its base.
    fn ends(&self) -> (usize, usize) {
        match self.kind {
            ArrowKind::Met | ArrowKind::Unmet => (self.from, self.to),
            ArrowKind::Derives => (self.to, self.from),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ArrowKind {
    /// From a value to a dependency that is there.
    Met,
    /// From a value to a dependency that is missing.
    Unmet,
    /// From a base to a derived value.
    Derives,
}

/// A drawing of the graph, as SVG or DOT.
#[derive(Debug, Clone)]
pub struct Picture {
    pub(crate) title: String,
    pub(crate) footer: String,
    pub(crate) at: Timestamp,
    pub(crate) figures: Vec<Figure>,
    pub(crate) arrows: Vec<Arrow>,
}

/// The colours of a figure: fill, border, text and whether the border is dashed.
pub(crate) fn colours(figure: &Figure) -> (&'static str, &'static str, &'static str, bool) {
    use ValueState as S;
    if figure.placeholder {
        return ("White", "Red", "Red", true);
    }
    match figure.state {
        S::Configured if figure.derived => ("LightYellow", "#8B7D6B", "Black", false),
        S::Configured => ("PaleGreen", "Black", "Black", false),
        S::Obtained => ("LightCyan", "Black", "Black", false),
        S::Discovered => ("Lime", "Black", "Black", false),
        S::Pending => ("Pink", "Black", "Black", true),
        S::Invalid => ("Maroon", "Black", "White", false),
        S::Failed => ("OrangeRed", "Black", "Black", false),
        S::Retrying => ("DeepPink", "Black", "Black", false),
        S::Missing => ("DimGray", "Black", "White", true),
        S::Unimplemented => ("DarkKhaki", "Black", "Black", true),
        S::Removed => ("Black", "Gray", "White", true),
        S::Nonexistent => ("Black", "Black", "White", false),
    }
}

/// The host name of this machine, if known.
fn host() -> String {
    let told = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match told.trim() {
        "" => "unknown host".to_owned(),
        name => name.to_owned(),
    }
}

#[derive(Default)]
struct Sketch {
    figures: Vec<Figure>,
    places: HashMap<String, usize>,
    arrows: Vec<Arrow>,
    drawn: HashSet<(usize, usize)>,
}

impl Sketch {
    fn figure(&mut self, figure: Figure) {
        self.places.insert(figure.key.clone(), self.figures.len());
        self.figures.push(figure);
    }

    fn arrow(&mut self, from: usize, to: usize, kind: ArrowKind) {
        self.draw(Arrow { from, to, kind, any: false });
    }

    fn draw(&mut self, arrow: Arrow) {
        if self.drawn.insert((arrow.from, arrow.to)) {
            self.arrows.push(arrow);
        }
    }

    fn missing(&mut self, from: usize, name: String) {
        let place = match self.places.get(&name) {
            Some(place) => *place,
            None => {
                self.figure(Figure {
                    key: name.clone(),
                    label: name,
                    cluster: String::new(),
                    state: ValueState::Nonexistent,
                    derived: false,
                    value: String::new(),
                    touched: false,
                    placeholder: true,
                    uncertain: false,
                });
                self.figures.len() - 1
            }
        };
        self.arrow(from, place, ArrowKind::Unmet);
    }

    fn finish(self, title: String, at: Timestamp) -> Picture {
        let footer = format!("{at} - {} - pid {}", host(), std::process::id());
        Picture { title, footer, at, figures: self.figures, arrows: self.arrows }
    }
}

impl Picture {
    /// The graph as it is now.
    pub(crate) fn current(graph: &Graph, registry: &Registry, now: Timestamp) -> Self {
        let mut sketch = Sketch::default();
        for (key, _, node) in graph.nodes() {
            let descriptor = node.descriptor.map(|id| registry.get(id));
            sketch.figure(Figure {
                key: key.to_string(),
                label: descriptor.map_or_else(|| key.to_string(), |one| one.label(key)),
                cluster: descriptor.map(|one| one.name().to_owned()).unwrap_or_default(),
                state: node.state,
                derived: node.base.is_some(),
                value: node.value.as_ref().map(ToString::to_string).unwrap_or_default(),
                touched: false,
                placeholder: false,
                uncertain: node.uncertain,
            });
        }
        let place = |sketch: &Sketch, key: &Key| sketch.places.get(key.as_str()).copied();
        for (key, _, node) in graph.nodes() {
            let Some(from) = place(&sketch, key) else {
                continue;
            };
            if let Some(base) = node.base.and_then(|base| place(&sketch, graph.key(base))) {
                sketch.arrow(base, from, ArrowKind::Derives);
            }
            for edge in &*node.edges {
                let met = if graph.is_met(edge) { ArrowKind::Met } else { ArrowKind::Unmet };
                match &edge.target {
                    EdgeTarget::Key(target, _) => match place(&sketch, target) {
                        Some(to) => sketch.arrow(from, to, met),
                        None => sketch.missing(from, target.to_string()),
                    },
                    // One arrow, to the value that meets it, however many others would.
                    EdgeTarget::AnyOf { witness, .. } => {
                        let found = witness.and_then(|witness| place(&sketch, graph.key(witness)));
                        match found {
                            Some(to) => sketch.draw(Arrow { from, to, kind: met, any: true }),
                            None => sketch.missing(from, format!("? {} ?", edge.label)),
                        }
                    }
                }
            }
        }
        let title = format!("{} keys - current", graph.len());
        sketch.finish(title, now)
    }

    /// The graph after a transaction.
    pub(crate) fn past(revisions: Vec<RevisionView>, record: &TransactionRecord) -> Self {
        let touched: BTreeSet<&Key> = record.touched().collect();
        let available: BTreeMap<String, bool> =
            revisions.iter().map(|one| (one.key.to_string(), one.available)).collect();
        let mut sketch = Sketch::default();
        for one in &revisions {
            sketch.figure(Figure {
                key: one.key.to_string(),
                label: one.label.clone(),
                cluster: one.descriptor.clone().unwrap_or_default(),
                state: one.state,
                derived: one.derived_from.is_some(),
                value: one.value.as_ref().map(ToString::to_string).unwrap_or_default(),
                touched: touched.contains(&one.key),
                placeholder: false,
                uncertain: false,
            });
        }
        for (from, one) in revisions.iter().enumerate() {
            let base = one.derived_from.as_ref().and_then(|base| sketch.places.get(base.as_str()));
            if let Some(base) = base.copied() {
                sketch.arrow(base, from, ArrowKind::Derives);
            }
            for (edge, (label, target)) in one.edges.iter().zip(&one.targets) {
                if let EdgeTarget::AnyOf { set, .. } = &edge.target {
                    let found = revisions.iter().position(|other| {
                        other.available
                            && set.accepts(&other.key)
                            && edge.accepts(other.value.as_ref())
                    });
                    match found {
                        Some(to) => {
                            sketch.draw(Arrow { from, to, kind: ArrowKind::Met, any: true });
                        }
                        None => sketch.missing(from, format!("? {label} ?")),
                    }
                    continue;
                }
                match sketch.places.get(target).copied() {
                    Some(to) if available.get(target) == Some(&true) => {
                        sketch.arrow(from, to, ArrowKind::Met);
                    }
                    Some(to) => sketch.arrow(from, to, ArrowKind::Unmet),
                    None => sketch.missing(from, target.clone()),
                }
            }
        }
        let title = format!("{} keys - SeqNum: {} ({})", revisions.len(), record.seq, record.stop);
        sketch.finish(title, record.stop)
    }
}
