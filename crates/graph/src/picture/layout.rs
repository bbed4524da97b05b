//! Computes the layout of a picture.
//!
//! Columns go from left to right: a value is placed to the right of its dependencies and its base.
//! Each descriptor has a band of its own from top to bottom, in which its values share columns;
//! inside a band and column, values are placed near their neighbours in the graph. A column that
//! would grow too tall is folded, at the height for which the whole picture fits a screen best.

use std::collections::{BTreeMap, HashMap};

use super::{ArrowKind, Picture};

pub(super) const BOX_HEIGHT: f64 = 26.0;
pub(super) const ROW: f64 = 36.0;
const GAP: f64 = 90.0;
const FOLD_GAP: f64 = 16.0;
const LETTER: f64 = 7.2;
/// The heights at which columns may be folded.
const FOLDS: [usize; 5] = [24, 16, 12, 8, 48];
/// The aspect ratio of a screen.
const SCREEN: f64 = 1.6;

/// A box of the picture.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Place {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
}

/// A frame around the values of one descriptor.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Band {
    pub(super) name: String,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Layout {
    pub(super) places: Vec<Place>,
    pub(super) bands: Vec<Band>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// The label as it is shown: a long one is cut in the middle.
pub(super) fn shown(label: &str) -> String {
    let letters: Vec<char> = label.chars().collect();
    if letters.len() <= 34 {
        return label.to_owned();
    }
    let head: String = letters[..14].iter().collect();
    let tail: String = letters[letters.len() - 18..].iter().collect();
    format!("{head}…{tail}")
}

pub(super) fn layout(picture: &Picture) -> Layout {
    let ranks = ranks(picture);
    let bands = bands(picture);
    let order = order(picture, &ranks, &bands);
    let mut cells: Cells = BTreeMap::new();
    for index in order {
        cells.entry((bands[index].0, ranks[index])).or_default().push(index);
    }
    let names: BTreeMap<usize, &str> =
        bands.iter().map(|(number, name)| (*number, *name)).collect();
    let tried = FOLDS.map(|fold| arrange(picture, &cells, &names, fold));
    let far = |layout: &Layout| (layout.width / SCREEN).max(layout.height);
    tried.into_iter().min_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or_default()
}

/// The figures of each band and column, from top to bottom.
type Cells = BTreeMap<(usize, usize), Vec<usize>>;

/// Places all figures, with columns folded at `tallest`.
fn arrange(
    picture: &Picture,
    cells: &Cells,
    names: &BTreeMap<usize, &str>,
    tallest: usize,
) -> Layout {
    let widths: Vec<f64> = picture
        .figures
        .iter()
        .map(|one| shown(&one.label).chars().count() as f64 * LETTER + 18.0)
        .collect();
    let columns = cells.keys().map(|(_, rank)| rank + 1).max().unwrap_or(0);
    // A column is as wide as its widest cell, folded.
    let mut column_width = vec![0.0_f64; columns];
    for ((_, rank), members) in cells {
        column_width[*rank] = column_width[*rank].max(cell_width(members, &widths, tallest));
    }
    let mut left = vec![0.0; columns];
    let mut x = 40.0;
    for (column, width) in column_width.iter().enumerate() {
        left[column] = x;
        x += width + GAP;
    }
    let mut result =
        Layout { places: vec![Place::default(); picture.figures.len()], ..Layout::default() };
    let mut y = 70.0;
    for (number, name) in names.iter().map(|(number, name)| (*number, *name)) {
        let top = y + 34.0;
        let mut bottom = top;
        let (mut first, mut last) = (f64::MAX, 0.0_f64);
        for ((_, rank), members) in cells.range((number, 0)..(number + 1, 0)) {
            let mut fold_left = left[*rank];
            for fold in members.chunks(tallest) {
                let width = fold.iter().map(|index| widths[*index]).fold(0.0, f64::max);
                for (row, index) in fold.iter().enumerate() {
                    let place =
                        Place { x: fold_left, y: top + row as f64 * ROW, width: widths[*index] };
                    result.places[*index] = place;
                    bottom = bottom.max(place.y + ROW);
                    first = first.min(place.x);
                    last = last.max(place.x + place.width);
                }
                fold_left += width + FOLD_GAP;
            }
        }
        let width = (last - first + 32.0).max(name.chars().count() as f64 * 8.0 + 64.0);
        let height = bottom - y + 6.0;
        result.bands.push(Band { name: name.to_owned(), x: first - 16.0, y, width, height });
        y += height + 22.0;
    }
    // The title is written in larger letters.
    let title = picture.title.chars().count() as f64 * 12.4 + 48.0;
    let right = |band: &Band| band.x + band.width;
    let bands = result.bands.iter().map(right).fold(0.0, f64::max);
    result.width = (x - GAP).max(title).max(bands) + 24.0;
    result.height = y + 30.0;
    result
}

fn cell_width(members: &[usize], widths: &[f64], tallest: usize) -> f64 {
    let folds = members.chunks(tallest);
    folds.map(|fold| fold.iter().map(|index| widths[*index]).fold(0.0, f64::max) + FOLD_GAP).sum()
}

/// The column of each figure: one more than its furthest dependency. Edges that close a cycle do
/// not count.
fn ranks(picture: &Picture) -> Vec<usize> {
    let count = picture.figures.len();
    let mut needs: Vec<Vec<usize>> = vec![Vec::new(); count];
    for arrow in &picture.arrows {
        match arrow.kind {
            ArrowKind::Derives => needs[arrow.to].push(arrow.from),
            _ => needs[arrow.from].push(arrow.to),
        }
    }
    let mut rank = vec![0; count];
    let mut mark = vec![0_u8; count];
    for start in 0..count {
        let mut stack = vec![(start, 0)];
        while let Some((index, next)) = stack.pop() {
            mark[index] = mark[index].max(1);
            match needs[index].get(next) {
                Some(&other) => {
                    stack.push((index, next + 1));
                    if mark[other] == 0 {
                        stack.push((other, 0));
                    }
                }
                None if mark[index] == 1 => {
                    let done = needs[index].iter().filter(|other| mark[**other] == 2);
                    rank[index] = done.map(|other| rank[*other] + 1).max().unwrap_or(0);
                    mark[index] = 2;
                }
                None => {}
            }
        }
    }
    rank
}

/// The band of each figure; figures without a descriptor come last.
fn bands(picture: &Picture) -> Vec<(usize, &str)> {
    let mut names: Vec<&str> = picture.figures.iter().map(|one| one.cluster.as_str()).collect();
    names.sort_unstable_by_key(|name| (name.is_empty(), *name));
    names.dedup();
    let numbers: HashMap<&str, usize> =
        names.iter().enumerate().map(|(number, name)| (*name, number)).collect();
    let figures = picture.figures.iter();
    figures.map(|one| (numbers[one.cluster.as_str()], one.cluster.as_str())).collect()
}

/// Orders figures from top to bottom: a few rounds of moving each to the mean of its neighbours.
fn order(picture: &Picture, ranks: &[usize], bands: &[(usize, &str)]) -> Vec<usize> {
    let count = picture.figures.len();
    let mut neighbours: Vec<Vec<usize>> = vec![Vec::new(); count];
    for arrow in &picture.arrows {
        neighbours[arrow.from].push(arrow.to);
        neighbours[arrow.to].push(arrow.from);
    }
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|index| (bands[*index].0, ranks[*index]));
    let mut height: Vec<f64> = vec![0.0; count];
    for round in 0..8 {
        for (position, index) in order.iter().enumerate() {
            height[*index] = position as f64;
        }
        let left_to_right = round % 2 == 0;
        let middle: Vec<f64> = (0..count)
            .map(|index| {
                let side: Vec<f64> = neighbours[index]
                    .iter()
                    .filter(|other| (ranks[**other] < ranks[index]) == left_to_right)
                    .map(|other| height[*other])
                    .collect();
                match side.len() {
                    0 => height[index],
                    many => side.iter().sum::<f64>() / many as f64,
                }
            })
            .collect();
        order.sort_by(|a, b| {
            (bands[*a].0, ranks[*a])
                .cmp(&(bands[*b].0, ranks[*b]))
                .then(middle[*a].total_cmp(&middle[*b]))
                .then(a.cmp(b))
        });
    }
    order
}
