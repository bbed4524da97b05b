//! The picture in the DOT language.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{ArrowKind, Picture, colours};

impl Picture {
    /// The picture in the DOT language.
    pub fn dot(&self) -> String {
        let mut out = String::from("digraph kvscheduler {\n");
        let _ = writeln!(out, "  ranksep=.5; nodesep=.1; rankdir=\"LR\"; labelloc=\"t\";");
        let _ = writeln!(out, "  label={}; fontname=\"Ubuntu\"; fontsize=20;", quoted(&self.title));
        let _ = writeln!(out, "  node [shape=\"box\" style=\"filled\" fontname=\"Ubuntu\"];");
        let mut clusters: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, figure) in self.figures.iter().enumerate() {
            clusters.entry(&figure.cluster).or_default().push(index);
        }
        for (number, (cluster, members)) in clusters.into_iter().enumerate() {
            if !cluster.is_empty() {
                let _ = writeln!(out, "  subgraph cluster_{number} {{");
                let _ = writeln!(
                    out,
                    "    label={}; bgcolor=\"#e6ecfa\";",
                    quoted(&format!("< {cluster} >"))
                );
            }
            for index in members {
                self.dot_figure(&mut out, index);
            }
            if !cluster.is_empty() {
                out.push_str("  }\n");
            }
        }
        for arrow in &self.arrows {
            let style = match arrow.kind {
                ArrowKind::Met => "color=\"Black\"",
                ArrowKind::Unmet => "color=\"Red\"",
                ArrowKind::Derives => "color=\"bisque4\" arrowhead=\"invempty\"",
            };
            let _ = writeln!(out, "  n{} -> n{} [{style}];", arrow.from, arrow.to);
        }
        let _ = writeln!(out, "  // {}\n}}", self.footer.replace('\n', " "));
        out
    }

    fn dot_figure(&self, out: &mut String, index: usize) {
        let figure = &self.figures[index];
        let (fill, border, text, dashed) = colours(figure);
        let mut style = vec!["filled"];
        if figure.derived {
            style.push("rounded");
        }
        if dashed {
            style.push("dashed");
        }
        let (border, width) = if figure.touched { ("Gold", 2) } else { (border, 1) };
        let tooltip = format!("[{}] {}\n{}", figure.state, figure.key, figure.value);
        let _ = writeln!(
            out,
            "    n{index} [label={} style=\"{}\" fillcolor=\"{fill}\" color=\"{border}\" penwidth={width} \
             fontcolor=\"{text}\" tooltip={} URL={}];",
            quoted(&figure.label),
            style.join(","),
            quoted(&tooltip),
            quoted(&self.timeline_link(&figure.key)),
        );
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
