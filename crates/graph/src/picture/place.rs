//! Places boxes into the cells of a grid.
//!
//! Bands go from left to right in the order of their dependencies, and share a column of bands when
//! neither needs the other. Inside a band, a box stands to the right of the boxes it depends on, near
//! the rows of its neighbours. A column that would be too tall is folded into several, a band or
//! picture that would be too wide continues in the rows below, as text does; the widths and heights
//! are those for which the whole fits a screen best.
//!
//! Always holds: no two boxes share a cell, and the title of a band has a row of its own.

use std::collections::BTreeMap;

use super::rank::ranks;

/// The aspect ratio of a screen.
const SCREEN: f64 = 1.7;
/// The most rows of a column, and the most columns of a band and of the picture, that are tried.
const TALLEST: [usize; 7] = [4, 6, 8, 12, 16, 24, 40];
const WIDEST: [usize; 4] = [8, 12, 18, 32];
const ACROSS: [usize; 3] = [12, 18, 32];
/// The part of the size that each column a line passes adds, and the columns that a line to the left
/// counts for besides those of the picture.
const PASSED: f64 = 0.05;
const BACKWARD: usize = 8;
/// How often boxes are moved to the mean row of their neighbours.
const SWEEPS: usize = 8;
/// The height of a row, and the width of a column besides its boxes, as far as they are known here.
const ROUGH_ROW: f64 = 42.0;
const ROUGH_GAP: f64 = 52.0;

/// A box to be placed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spot {
    pub(super) band: usize,
    /// The box to whose left it stands.
    pub(super) beside: Option<usize>,
    pub(super) width: f64,
}

/// Boxes, the links from dependents to dependencies, and the width of each band's title. Bands are
/// in the order of their mean ranks.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Plan {
    pub(super) spots: Vec<Spot>,
    pub(super) links: Vec<(usize, usize)>,
    pub(super) titles: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cell {
    pub(super) column: usize,
    pub(super) row: usize,
}

/// The cells of a band; the first row holds its title.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Block {
    pub(super) column: usize,
    pub(super) row: usize,
    pub(super) columns: usize,
    pub(super) rows: usize,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Grid {
    pub(super) cells: Vec<Cell>,
    pub(super) blocks: Vec<Block>,
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// The most rows of a column, columns of a band, and columns of the picture.
#[derive(Debug, Clone, Copy)]
struct Fold {
    tallest: usize,
    widest: usize,
    across: usize,
}

pub(super) fn place(plan: &Plan) -> Grid {
    let mut order = Order::new(plan);
    let mut best: Option<(f64, Fold, Grid)> = None;
    for tallest in TALLEST {
        for widest in WIDEST {
            for across in ACROSS {
                let fold = Fold { tallest, widest, across };
                let grid = order.arrange(plan, fold);
                let size = cost(plan, &grid);
                if best.as_ref().is_none_or(|(least, ..)| size < *least) {
                    best = Some((size, fold, grid));
                }
            }
        }
    }
    let Some((_, fold, mut grid)) = best else { return Grid::default() };
    let (mut least, mut current) = (length(plan, &grid), grid.clone());
    for _ in 0..SWEEPS {
        order.sweep(plan, &current);
        current = order.arrange(plan, fold);
        let found = length(plan, &current);
        if found < least {
            (least, grid) = (found, current.clone());
        }
    }
    grid
}

/// About the size of the picture on a screen, more if its lines are long or go back to the left.
fn cost(plan: &Plan, grid: &Grid) -> f64 {
    let width: f64 = column_widths(plan, grid).iter().map(|width| width + ROUGH_GAP).sum();
    let height = grid.rows as f64 * ROUGH_ROW;
    let size = (width / SCREEN).max(height) + (width + height) / 100.0;
    let column = |index: usize| grid.cells[index].column;
    let passed = |(from, to): &(usize, usize)| match column(*from).checked_sub(column(*to)) {
        Some(distance) => distance.saturating_sub(1),
        None => grid.columns + BACKWARD,
    };
    let far: usize = plan.links.iter().map(passed).sum();
    size * (1.0 + PASSED * far as f64 / plan.links.len().max(1) as f64)
}

/// The width of each column: that of its widest box, and enough for the titles of bands.
pub(super) fn column_widths(plan: &Plan, grid: &Grid) -> Vec<f64> {
    let mut widths = vec![0.0_f64; grid.columns];
    for (spot, cell) in plan.spots.iter().zip(&grid.cells) {
        widths[cell.column] = widths[cell.column].max(spot.width);
    }
    for (title, block) in plan.titles.iter().zip(&grid.blocks) {
        let columns = &mut widths[block.column..block.column + block.columns];
        let lacking = title - columns.iter().sum::<f64>();
        if let (Some(last), true) = (columns.last_mut(), lacking > 0.0) {
            *last += lacking;
        }
    }
    // Whole numbers add up exactly.
    widths.into_iter().map(f64::ceil).collect()
}

/// The sum of the vertical lengths of all links.
fn length(plan: &Plan, grid: &Grid) -> usize {
    let row = |index: usize| grid.cells[index].row;
    plan.links.iter().map(|(from, to)| row(*from).abs_diff(row(*to))).sum()
}

/// The order of boxes from top to bottom, and of bands.
#[derive(Debug)]
struct Order {
    /// Columns of bands, from left to right.
    layers: Vec<Vec<usize>>,
    /// The boxes of each band by rank inside the band.
    bands: Vec<Vec<Vec<usize>>>,
    /// The boxes beside each box.
    beside: Vec<Vec<usize>>,
    neighbours: Vec<Vec<usize>>,
}

impl Order {
    fn new(plan: &Plan) -> Self {
        let count = plan.spots.len();
        let mut beside = vec![Vec::new(); count];
        for (index, spot) in plan.spots.iter().enumerate() {
            if let Some(owner) = spot.beside {
                beside[owner].push(index);
            }
        }
        let free = |index: usize| plan.spots[index].beside.is_none();
        let mut needs = vec![Vec::new(); count];
        let mut neighbours = vec![Vec::new(); count];
        for (from, to) in plan.links.iter().copied().filter(|(from, to)| free(*from) && free(*to)) {
            neighbours[from].push(to);
            neighbours[to].push(from);
            if plan.spots[from].band == plan.spots[to].band {
                needs[from].push(to);
            }
        }
        let ranks = ranks(&needs);
        let mut bands: Vec<Vec<Vec<usize>>> = vec![Vec::new(); plan.titles.len()];
        for index in (0..count).filter(|index| free(*index)) {
            let band = &mut bands[plan.spots[index].band];
            if band.len() <= ranks[index] {
                band.resize(ranks[index] + 1, Vec::new());
            }
            band[ranks[index]].push(index);
        }
        Self { layers: layers(plan), bands, beside, neighbours }
    }

    /// Moves each box towards the mean row of its neighbours, and each band to the mean of its boxes.
    fn sweep(&mut self, plan: &Plan, grid: &Grid) {
        let wanted: Vec<f64> = (0..plan.spots.len())
            .map(|index| {
                let near = &self.neighbours[index];
                let sum: usize = near.iter().map(|other| grid.cells[*other].row).sum();
                match near.len() {
                    0 => grid.cells[index].row as f64,
                    many => sum as f64 / many as f64,
                }
            })
            .collect();
        for rank in self.bands.iter_mut().flatten() {
            rank.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]).then(a.cmp(b)));
        }
        let middle: Vec<f64> = self
            .bands
            .iter()
            .map(|ranks| {
                let all = ranks.iter().flatten();
                let sum: f64 = all.clone().map(|index| wanted[*index]).sum();
                sum / all.count().max(1) as f64
            })
            .collect();
        for layer in &mut self.layers {
            layer.sort_by(|a, b| middle[*a].total_cmp(&middle[*b]).then(a.cmp(b)));
        }
    }

    fn arrange(&self, plan: &Plan, fold: Fold) -> Grid {
        let mut grid = Grid {
            cells: vec![Cell::default(); plan.spots.len()],
            blocks: vec![Block::default(); self.bands.len()],
            ..Grid::default()
        };
        let blocks: Vec<BandCells> =
            self.bands.iter().map(|ranks| self.band(ranks, fold)).collect();
        let sizes: Vec<(usize, usize)> = self
            .layers
            .iter()
            .map(|layer| {
                let columns = layer.iter().map(|band| blocks[*band].columns).max().unwrap_or(0);
                (columns, layer.iter().map(|band| blocks[*band].rows).sum())
            })
            .collect();
        // Layers continue below when they are wider than the picture may be.
        let mut lines: Vec<Vec<usize>> = Vec::new();
        let mut width = 0;
        for (layer, (columns, _)) in sizes.iter().enumerate() {
            match lines.last_mut().filter(|_| width + columns <= fold.across) {
                Some(line) => line.push(layer),
                None => {
                    lines.push(vec![layer]);
                    width = 0;
                }
            }
            width += columns;
        }
        let mut top = 0;
        for line in lines {
            let height = line.iter().map(|layer| sizes[*layer].1).max().unwrap_or(0);
            let mut column = 0;
            for layer in line {
                let (columns, rows) = sizes[layer];
                let mut row = top + (height - rows) / 2;
                for band in &self.layers[layer] {
                    let own = &blocks[*band];
                    for (index, cell) in &own.cells {
                        grid.cells[*index] =
                            Cell { column: column + cell.column, row: row + cell.row };
                    }
                    grid.blocks[*band] =
                        Block { column, row, columns: own.columns, rows: own.rows };
                    row += own.rows;
                }
                column += columns;
                grid.columns = grid.columns.max(column);
            }
            top += height;
        }
        grid.rows = top;
        grid
    }

    /// The cells of one band: strips of boxes from left to right, continued below when the band is
    /// too wide. The first row is for the title.
    fn band(&self, ranks: &[Vec<usize>], fold: Fold) -> BandCells {
        let mut band = BandCells { rows: 1, ..BandCells::default() };
        let (mut column, mut top) = (0, 1);
        for strip in ranks.iter().flat_map(|rank| self.strips(rank, fold.tallest)) {
            let sides = usize::from(strip.iter().any(|(index, _)| !self.beside[*index].is_empty()));
            if column > 0 && column + sides + 1 > fold.widest {
                (column, top) = (0, band.rows);
            }
            for (index, row) in strip {
                let cell = Cell { column: column + sides, row: top + row };
                band.cells.push((index, cell));
                band.rows = band.rows.max(cell.row + 1);
                for (offset, other) in self.beside[index].iter().enumerate() {
                    let cell = Cell { column, row: cell.row + offset };
                    band.cells.push((*other, cell));
                    band.rows = band.rows.max(cell.row + 1);
                }
            }
            column += sides + 1;
            band.columns = band.columns.max(column);
        }
        band
    }

    /// Boxes of one rank with their rows, in strips of limited height. Boxes beside a box need rows
    /// as well.
    fn strips(&self, rank: &[usize], tallest: usize) -> Vec<Vec<(usize, usize)>> {
        let rows = |index: usize| self.beside[index].len().max(1);
        let all: usize = rank.iter().map(|index| rows(*index)).sum();
        // Strips of about the same height look better than a short one at the end.
        let tallest = all.div_ceil(all.div_ceil(tallest).max(1));
        let mut strips: Vec<Vec<(usize, usize)>> = Vec::new();
        let mut row = 0;
        for index in rank.iter().copied() {
            match strips.last_mut().filter(|_| row + rows(index) <= tallest) {
                Some(strip) => strip.push((index, row)),
                None => {
                    strips.push(vec![(index, 0)]);
                    row = 0;
                }
            }
            row += rows(index);
        }
        strips
    }
}

/// The cells of one band, counted from its own corner.
#[derive(Debug, Default)]
struct BandCells {
    cells: Vec<(usize, Cell)>,
    columns: usize,
    rows: usize,
}

/// Columns of bands: a band stands to the right of the bands it depends on. Where two depend on each
/// other, most links decide, then the order of mean ranks. A band without links to others fills the
/// shortest column.
fn layers(plan: &Plan) -> Vec<Vec<usize>> {
    let count = plan.titles.len();
    let mut links: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (from, to) in &plan.links {
        let (from, to) = (plan.spots[*from].band, plan.spots[*to].band);
        if from != to {
            *links.entry((from, to)).or_default() += 1;
        }
    }
    let mut needs: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut linked = vec![false; count];
    for ((from, to), number) in &links {
        (linked[*from], linked[*to]) = (true, true);
        let back = links.get(&(*to, *from)).copied().unwrap_or(0);
        if *number > back || (*number == back && to < from) {
            needs[*from].push(*to);
        }
    }
    let ranks = ranks(&needs);
    let alone: Vec<usize> = (0..count).filter(|band| !linked[*band]).collect();
    let mut layers: Vec<Vec<usize>> = Vec::new();
    for band in (0..count).filter(|band| linked[*band]) {
        if layers.len() <= ranks[band] {
            layers.resize(ranks[band] + 1, Vec::new());
        }
        layers[ranks[band]].push(band);
    }
    if layers.is_empty() {
        let columns = (1..=count).find(|columns| columns * columns >= count).unwrap_or(0);
        layers.resize(columns, Vec::new());
    }
    let mut sizes = vec![0; count];
    for spot in &plan.spots {
        sizes[spot.band] += 1;
    }
    for band in alone {
        let size =
            |layer: &&mut Vec<usize>| layer.iter().map(|band| sizes[*band] + 2).sum::<usize>();
        if let Some(layer) = layers.iter_mut().min_by_key(size) {
            layer.push(band);
        }
    }
    layers
}
