//! Decides which boxes and lines a view of the graph has.
//!
//! A value is a box. A band (the values of one descriptor) with too many values is divided into
//! tiles: boxes that stand for all its values in one state, with their number. A few values that are
//! not well stay boxes of their own, so that they are seen. A tile opens when the view names one of
//! its keys; a very large one opens into smaller tiles, so that every view stays readable.
//!
//! A missing dependency stands beside the first value that waits for it, in that value's band.

use std::collections::{BTreeMap, HashMap};

use super::options::ViewOptions;
use super::rank::ranks;
use super::{ArrowKind, Figure, Picture};

/// A band with more values is divided into tiles.
pub(super) const MOST_BOXES: usize = 40;
/// As many values of a state that is not well stay boxes of their own.
const MOST_UNWELL: usize = 12;
/// An open tile with more values is divided into smaller tiles.
const MOST_OPEN: usize = 200;
/// A value with more missing dependencies has one tile for all.
const MOST_MISSING: usize = 4;

/// A box of the view.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SceneBox {
    /// The figures it stands for, in key order. More than one for a tile.
    pub(super) members: Vec<usize>,
    pub(super) label: String,
    pub(super) band: usize,
    /// The box beside which a missing dependency stands.
    pub(super) beside: Option<usize>,
}

impl SceneBox {
    pub(super) fn is_tile(&self) -> bool {
        self.members.len() > 1
    }
}

/// All arrows of one kind between two boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    /// The dependent, or the derived value.
    pub(super) from: usize,
    /// The dependency, or the base.
    pub(super) to: usize,
    pub(super) kind: ArrowKind,
    pub(super) any: bool,
    pub(super) count: usize,
}

/// The values of one descriptor.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SceneBand {
    pub(super) name: String,
    /// The mean rank of its values: how far they are from values without dependencies.
    pub(super) rank: f64,
    pub(super) values: usize,
    /// The keys that hold its tiles open.
    pub(super) open: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Scene {
    pub(super) bands: Vec<SceneBand>,
    pub(super) boxes: Vec<SceneBox>,
    pub(super) lines: Vec<Line>,
    /// The box of each figure; none if it is not shown.
    pub(super) box_of: Vec<Option<usize>>,
}

pub(super) fn scene(picture: &Picture, options: &ViewOptions) -> Scene {
    let visible = options.visible(picture);
    let band_of = band_of(picture, &visible);
    let mut scene = Scene { box_of: vec![None; picture.figures.len()], ..Scene::default() };
    scene.bands = bands(picture, options, &visible, &band_of);
    let numbers: HashMap<String, usize> =
        scene.bands.iter().enumerate().map(|(number, band)| (band.name.clone(), number)).collect();
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); scene.bands.len()];
    for (index, figure) in picture.figures.iter().enumerate() {
        if visible[index] && !figure.placeholder {
            members[numbers[band_of[index]]].push(index);
        }
    }
    for (band, members) in members.into_iter().enumerate() {
        scene.divide_band(picture, options, band, members);
    }
    scene.add_missing(picture, options, &visible);
    scene.add_lines(picture);
    scene
}

/// The band of each figure: its descriptor, or that of its base if it has none of its own.
fn band_of<'a>(picture: &'a Picture, visible: &[bool]) -> Vec<&'a str> {
    let mut names: Vec<&str> = picture.figures.iter().map(|one| one.cluster.as_str()).collect();
    for arrow in picture.arrows.iter().filter(|arrow| arrow.kind == ArrowKind::Derives) {
        if names[arrow.to].is_empty() && visible[arrow.from] {
            names[arrow.to] = &picture.figures[arrow.from].cluster;
        }
    }
    names
}

/// The bands in the order of their mean ranks.
fn bands(
    picture: &Picture,
    options: &ViewOptions,
    visible: &[bool],
    band_of: &[&str],
) -> Vec<SceneBand> {
    let mut needs: Vec<Vec<usize>> = vec![Vec::new(); picture.figures.len()];
    for arrow in &picture.arrows {
        let (dependent, dependency) = arrow.ends();
        needs[dependent].push(dependency);
    }
    let ranks = ranks(&needs);
    let mut found: BTreeMap<&str, (usize, usize, Vec<String>)> = BTreeMap::new();
    for (index, figure) in picture.figures.iter().enumerate() {
        if visible[index] && !figure.placeholder {
            let (values, sum, open) = found.entry(band_of[index]).or_default();
            *values += 1;
            *sum += ranks[index];
            if options.open.contains(&figure.key) {
                open.push(figure.key.clone());
            }
        }
    }
    let band = |(name, (values, sum, open)): (&str, (usize, usize, Vec<String>))| SceneBand {
        name: name.to_owned(),
        rank: sum as f64 / values as f64,
        values,
        open,
    };
    let mut bands: Vec<SceneBand> = found.into_iter().map(band).collect();
    bands.sort_by(|a, b| a.rank.total_cmp(&b.rank).then_with(|| a.name.cmp(&b.name)));
    bands
}

/// The part that all labels begin with, up to a slash: the name of the band replaces it.
fn common_prefix<'a>(labels: impl Iterator<Item = &'a str>) -> usize {
    let mut common: Option<&str> = None;
    for label in labels {
        common = Some(match common {
            None => label.rsplit_once('/').map_or("", |(head, _)| &label[..head.len() + 1]),
            Some(common) => {
                let same = common.bytes().zip(label.bytes()).take_while(|(a, b)| a == b).count();
                let end = label.bytes().take(same).rposition(|byte| byte == b'/');
                end.map_or("", |end| &label[..end + 1])
            }
        });
    }
    common.map_or(0, str::len)
}

impl Scene {
    fn divide_band(
        &mut self,
        picture: &Picture,
        options: &ViewOptions,
        band: usize,
        members: Vec<usize>,
    ) {
        let label = |index: &usize| picture.figures[*index].label.as_str();
        let cut = if members.len() > 1 { common_prefix(members.iter().map(label)) } else { 0 };
        let mut divider = Divider { scene: self, picture, options, band, cut };
        if members.len() <= MOST_BOXES {
            members.into_iter().for_each(|member| divider.single(member));
            return;
        }
        let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for index in members {
            let figure = &picture.figures[index];
            groups.entry((figure.is_well(), figure.state, figure.derived)).or_default().push(index);
        }
        for ((well, ..), members) in groups {
            match well || members.len() > MOST_UNWELL {
                true => divider.tile(members, None),
                false => members.into_iter().for_each(|member| divider.single(member)),
            }
        }
    }

    /// Adds missing dependencies beside the first box that waits for each.
    fn add_missing(&mut self, picture: &Picture, options: &ViewOptions, visible: &[bool]) {
        let mut owners: BTreeMap<usize, usize> = BTreeMap::new();
        for arrow in &picture.arrows {
            let missing = picture.figures[arrow.to].placeholder && visible[arrow.to];
            if let (true, Some(owner)) = (missing, self.box_of[arrow.from]) {
                let known = owners.entry(arrow.to).or_insert(owner);
                *known = owner.min(*known);
            }
        }
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (missing, owner) in owners {
            groups.entry(owner).or_default().push(missing);
        }
        for (owner, missing) in groups {
            let is_open =
                missing.iter().any(|one| options.open.contains(&picture.figures[*one].key));
            let boxes = match missing.len() > MOST_MISSING && !is_open {
                true => vec![missing],
                false => missing.into_iter().map(|one| vec![one]).collect(),
            };
            for members in boxes {
                let label = match members[..] {
                    [one] => picture.figures[one].label.clone(),
                    _ => format!("{} missing", grouped(members.len())),
                };
                let band = self.boxes[owner].band;
                self.push(SceneBox { members, label, band, beside: Some(owner) });
            }
        }
    }

    fn add_lines(&mut self, picture: &Picture) {
        let mut counts: BTreeMap<(u8, usize, usize), Line> = BTreeMap::new();
        for arrow in &picture.arrows {
            let (from, to) = arrow.ends();
            let (Some(from), Some(to)) = (self.box_of[from], self.box_of[to]) else { continue };
            // A value that depends on itself has a loop; a tile would have one for most graphs.
            if from == to && self.boxes[from].is_tile() {
                continue;
            }
            let start = Line { from, to, kind: arrow.kind, any: true, count: 0 };
            let line = counts.entry((arrow.kind as u8, from, to)).or_insert(start);
            line.any &= arrow.any;
            line.count += 1;
        }
        self.lines = counts.into_values().collect();
    }

    fn push(&mut self, one: SceneBox) {
        for member in &one.members {
            self.box_of[*member] = Some(self.boxes.len());
        }
        self.boxes.push(one);
    }
}

/// Divides the values of one band into boxes.
struct Divider<'a> {
    scene: &'a mut Scene,
    picture: &'a Picture,
    options: &'a ViewOptions,
    band: usize,
    /// The length of the beginning that all labels share.
    cut: usize,
}

impl Divider<'_> {
    fn label(&self, index: usize) -> String {
        let label = &self.picture.figures[index].label;
        match label.get(self.cut..).unwrap_or_default() {
            "" => label.clone(),
            rest => rest.to_owned(),
        }
    }

    fn single(&mut self, index: usize) {
        let (members, label) = (vec![index], self.label(index));
        self.scene.push(SceneBox { members, label, band: self.band, beside: None });
    }

    /// A tile for these values, or its content if it is open.
    fn tile(&mut self, members: Vec<usize>, range: Option<String>) {
        let figure = |index: &usize| &self.picture.figures[*index];
        let is_open = members.iter().any(|one| self.options.open.contains(&figure(one).key));
        if members.len() == 1 || (is_open && members.len() <= MOST_OPEN) {
            members.into_iter().for_each(|member| self.single(member));
        } else if is_open {
            let pieces = members.len().div_ceil(MOST_OPEN).clamp(2, MOST_BOXES);
            for piece in members.chunks(members.len().div_ceil(pieces)) {
                let ends = [piece.first(), piece.last()].map(|end| end.map(|one| self.label(*one)));
                let range = ends.map(Option::unwrap_or_default).join(" – ");
                self.tile(piece.to_vec(), Some(range));
            }
        } else {
            let count = grouped(members.len());
            let label = match range {
                Some(range) => format!("{count}: {range}"),
                None => members
                    .first()
                    .map(|one| format!("{count} {}", named(figure(one))))
                    .unwrap_or_default(),
            };
            self.scene.push(SceneBox { members, label, band: self.band, beside: None });
        }
    }
}

/// The state of a figure in words.
pub(super) fn named(figure: &Figure) -> String {
    let state = figure.state.name().to_lowercase();
    if figure.derived { format!("{state}, derived") } else { state }
}

/// A number with separators: 4,812.
pub(super) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
