//! The picture as a page: search, legend, filter, details and a slider over time.
//!
//! The page is one document without outside resources. Its policy allows exactly its own style and
//! script, by their hashes, and requests to the server it came from. All links are relative, so that
//! the page works below any path. It shows the picture without its script, too.

use std::fmt::Write;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::options::{Only, ViewOptions};
use super::scene::{Scene, grouped};
use super::svg::{STYLE as PICTURE_STYLE, class_of, escaped};
use super::{ArrowKind, Picture};
use crate::record::TransactionRecord;
use crate::state::ValueState;

const SCRIPT: &str = include_str!("view.js");
const PAGE_STYLE: &str = include_str!("page.css");

/// The most transactions that the slider reaches.
pub(crate) const SLIDER: usize = 1_000;

/// The policy of the page, for the header `Content-Security-Policy`.
pub(crate) static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |parts: &[&str]| STANDARD.encode(Sha256::digest(parts.concat()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
        hash(&[SCRIPT]),
        hash(&[PAGE_STYLE, PICTURE_STYLE]),
    )
});

/// The policy of a picture that stands alone: no script at all.
pub(crate) const PICTURE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

impl Picture {
    /// One view of the graph as a page. `transactions` are those that the slider reaches, oldest
    /// first.
    pub(crate) fn page(
        &self,
        options: &ViewOptions,
        transactions: &[&TransactionRecord],
    ) -> String {
        let (scene, layout) = self.laid_out(options);
        let title = escaped(&self.title);
        let empty = match scene.boxes.is_empty() {
            true if options.only != Only::All => {
                "<p class=\"empty\">No value matches the filter.</p>"
            }
            true => "<p class=\"empty\">The graph is empty.</p>",
            false => "",
        };
        let picture = self.svg_part(options, &scene, &layout);
        let model = self.model(options, &scene, transactions);
        let legend = self.legend(options);
        let footer = escaped(&self.footer);
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n\
             <style>{PAGE_STYLE}{PICTURE_STYLE}</style>\n</head>\n<body>\n\
             <header class=\"bar\">\n<h1 id=\"title\">{title}</h1>\n\
             <div class=\"search\" role=\"search\"><input id=\"search\" type=\"search\" placeholder=\"Search keys, labels, states (/)\" \
             aria-label=\"Search values\" aria-controls=\"found\" autocomplete=\"off\" spellcheck=\"false\">\
             <ul id=\"found\" role=\"listbox\" aria-label=\"Values found\" hidden></ul></div>\n{legend}\n\
             </header>\n\
             <main>\n<div id=\"stage\">{picture}\
             <div class=\"zoom\"><button id=\"closer\" title=\"Zoom in (+)\" aria-label=\"Zoom in\">+</button>\
             <button id=\"farther\" title=\"Zoom out (-)\" aria-label=\"Zoom out\">−</button>\
             <button id=\"whole\" title=\"Show all of it (0)\">Fit</button>\
             <button id=\"again\" title=\"Load again (r)\">Reload</button></div>\
             <div id=\"hint\">{empty}</div><p id=\"notice\" role=\"alert\" hidden></p></div>\n\
             <aside id=\"panel\" aria-label=\"Details\" tabindex=\"-1\" hidden></aside>\n</main>\n\
             <div class=\"time\"><button id=\"earlier\" title=\"The transaction before ([)\" aria-label=\"The transaction before\">◀</button>\
             <input id=\"slider\" type=\"range\" min=\"0\" max=\"0\" value=\"0\" step=\"1\" aria-label=\"Time: transactions\">\
             <button id=\"later\" title=\"The next transaction (])\" aria-label=\"The next transaction\">▶</button>\
             <output id=\"moment\" for=\"slider\"></output></div>\n\
             <div class=\"note\" id=\"foot\">{footer}</div>\n<p class=\"sr\" role=\"status\" id=\"spoken\"></p>\n\
             <script type=\"application/json\" id=\"model\">{model}</script>\n\
             <script>{SCRIPT}</script>\n</body>\n</html>\n"
        )
    }

    /// One chip per state that occurs, with its number; each is a link to the values in that state.
    fn legend(&self, options: &ViewOptions) -> String {
        let mut out =
            String::from("<nav class=\"legend\" id=\"legend\" aria-label=\"Values by state\">");
        let mut chip = |only: Only, class: &str, count: usize, name: &str| {
            let is_current = options.only == only;
            let target = if is_current { Only::All } else { only };
            let dot = match class {
                "" => String::new(),
                _ => format!(
                    "<svg class=\"graph\" viewBox=\"0 0 10 10\" aria-hidden=\"true\"><g class=\"box {class}\"><circle class=\"dot\" cx=\"5\" cy=\"5\" r=\"5\"/></g></svg>"
                ),
            };
            let _ = write!(
                out,
                "<a class=\"chip\" data-view data-only=\"{}\" href=\"{}\" aria-current=\"{is_current}\">{dot}<b>{}</b> {name}</a>",
                only.argument().unwrap_or_default(),
                escaped(&options.showing(target).link()),
                grouped(count),
            );
        };
        let values = || self.figures.iter().filter(|figure| !figure.placeholder);
        chip(Only::All, "", values().count(), "all");
        let unwell = values().filter(|figure| !figure.is_well()).count();
        chip(Only::Unwell, "failed", unwell, "not well");
        for (state, count) in self.counts() {
            chip(Only::State(state), &class_of(state), count, &state.name().to_lowercase());
        }
        out.push_str("</nav>");
        out
    }

    /// The data of the script: every value, also those inside tiles, so that they can be found.
    fn model(
        &self,
        options: &ViewOptions,
        scene: &Scene,
        transactions: &[&TransactionRecord],
    ) -> String {
        let states: Vec<&str> = ValueState::ALL.iter().map(|state| state.name()).collect();
        let number = |state: ValueState| ValueState::ALL.iter().position(|one| *one == state);
        let values: Vec<_> = self
            .figures
            .iter()
            .zip(&scene.box_of)
            .map(|(figure, shown)| {
                let label = (figure.label != figure.key).then_some(&figure.label);
                let marks = u8::from(figure.placeholder)
                    | u8::from(figure.derived) << 1
                    | u8::from(figure.touched) << 2;
                json!([figure.key, label, figure.cluster, number(figure.state), marks, shown])
            })
            .collect();
        let arrows: Vec<_> = self
            .arrows
            .iter()
            .map(|arrow| {
                let (from, to) = arrow.ends();
                (from, to, arrow.kind as u8)
            })
            .collect();
        let lines: Vec<_> =
            scene.lines.iter().map(|line| (line.from, line.to, line.kind as u8)).collect();
        let times: Vec<_> = transactions
            .iter()
            .map(|one| {
                json!([
                    one.seq,
                    one.stop.to_string(),
                    one.kind.name(),
                    one.description,
                    one.executed.len(),
                    one.errors.len(),
                ])
            })
            .collect();
        let model = json!({
            "txn": options.transaction,
            "only": options.only.argument(),
            "open": options.open,
            "at": self.at.to_string(),
            "states": states,
            "values": values,
            "arrows": arrows,
            "lines": lines,
            "transactions": times,
        });
        // The text is inside a script element: nothing in it may end the element.
        let text = model.to_string();
        text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
    }
}

/// The numbers by which the script knows the kinds of arrows.
const _: () = assert!(
    ArrowKind::Met as u8 == 0 && ArrowKind::Unmet as u8 == 1 && ArrowKind::Derives as u8 == 2
);
