//! Tests of the picture: the laws of its layout, its tiles, and its text.

use std::collections::BTreeSet;

use jiff::Timestamp;
use proptest::prelude::*;

use super::layout::{Layout, Rect, layout};
use super::options::{Only, ViewOptions};
use super::place::{Plan, Spot, place};
use super::scene::{MOST_BOXES, scene};
use super::{Arrow, ArrowKind, Figure, Picture};
use crate::state::ValueState;

fn figure(key: &str, cluster: &str, state: ValueState) -> Figure {
    Figure {
        key: key.to_owned(),
        label: key.to_owned(),
        cluster: cluster.to_owned(),
        state,
        derived: false,
        value: String::new(),
        touched: false,
        placeholder: false,
        uncertain: false,
    }
}

fn missing(key: &str) -> Figure {
    Figure { placeholder: true, ..figure(key, "", ValueState::Nonexistent) }
}

fn arrow(from: usize, to: usize, kind: ArrowKind) -> Arrow {
    Arrow { from, to, kind, any: false }
}

fn picture(figures: Vec<Figure>, arrows: Vec<Arrow>) -> Picture {
    let (title, footer) = ("title".to_owned(), "footer".to_owned());
    Picture { title, footer, at: Timestamp::UNIX_EPOCH, figures, arrows }
}

/// Values in bands of a chain: each depends on one of the band before.
fn many(count: usize) -> Picture {
    let bands = ["disk", "group", "volume", "replica", "export"];
    let each = count / bands.len();
    let mut figures = Vec::new();
    let mut arrows = Vec::new();
    for (number, band) in bands.iter().enumerate() {
        for index in 0..each {
            let at = number * each + index;
            let mut one = figure(&format!("/{band}/{index:05}"), band, ValueState::Configured);
            if number > 0 {
                arrows.push(arrow(at, at - each - index + index / 3, ArrowKind::Met));
            }
            if at.is_multiple_of(97) {
                one.state = ValueState::Failed;
            }
            figures.push(one);
        }
    }
    picture(figures, arrows)
}

fn overlap(a: &Rect, b: &Rect) -> bool {
    a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height
}

/// The laws that hold for every layout.
fn check(plan: &Plan, layout: &Layout) {
    let mut rows: Vec<&Rect> = layout.boxes.iter().collect();
    rows.sort_by(|a, b| a.y.total_cmp(&b.y).then(a.x.total_cmp(&b.x)));
    for pair in rows.windows(2) {
        assert!(!overlap(pair[0], pair[1]), "{pair:?}");
    }
    for (spot, place) in plan.spots.iter().zip(&layout.boxes) {
        assert!(place.width >= spot.width, "a label does not fit its box");
        let band = &layout.bands[spot.band];
        assert!(place.x >= band.x && place.x + place.width <= band.x + band.width);
        assert!(place.y >= band.y + 14.0 && place.y + place.height <= band.y + band.height);
        let (right, bottom) = (place.x + place.width, place.y + place.height);
        assert!(
            place.x >= 0.0 && place.y >= 0.0 && right <= layout.width && bottom <= layout.height
        );
    }
    for (a, first) in layout.bands.iter().enumerate() {
        for other in &layout.bands[a + 1..] {
            assert!(!overlap(first, other), "bands overlap: {first:?} {other:?}");
        }
    }
    for line in &layout.lines {
        for ends in line.windows(2) {
            let ((x1, y1), (x2, y2)) = (ends[0], ends[1]);
            assert!(x1 == x2 || y1 == y2, "a line is not straight: {ends:?}");
            let (width, height) = ((x1 - x2).abs(), (y1 - y2).abs());
            let part = Rect { x: x1.min(x2), y: y1.min(y2), width, height };
            // A line without breadth crosses what it is strictly inside of.
            let crossed = layout.boxes.iter().find(|one| {
                part.x < one.x + one.width
                    && one.x < part.x + part.width.max(f64::MIN_POSITIVE)
                    && part.y < one.y + one.height
                    && one.y < part.y + part.height.max(f64::MIN_POSITIVE)
            });
            assert!(crossed.is_none(), "{part:?} crosses {crossed:?}");
        }
    }
}

fn plans() -> impl Strategy<Value = Plan> {
    (1..7_usize, 0..70_usize).prop_flat_map(|(bands, count)| {
        let spots = prop::collection::vec((0..bands, 60.0..240.0_f64), count);
        let links = prop::collection::vec((0..count.max(1), 0..count.max(1)), 0..count * 2 + 1);
        let beside = prop::collection::vec(0..count.max(1), 0..count / 4 + 1);
        (spots, links, beside).prop_map(move |(spots, links, beside)| {
            let mut plan = Plan { titles: vec![90.0; bands], ..Plan::default() };
            let spot = |(band, width)| Spot { band, beside: None, width };
            plan.spots = spots.into_iter().map(spot).collect();
            if plan.spots.is_empty() {
                return plan;
            }
            plan.links = links;
            for owner in beside {
                let band = plan.spots[owner].band;
                plan.links.push((owner, plan.spots.len()));
                plan.spots.push(Spot { band, beside: Some(owner), width: 80.0 });
            }
            plan
        })
    })
}

proptest! {
    #[test]
    fn no_boxes_or_bands_overlap_and_no_line_crosses_a_box(plan in plans()) {
        let found = layout(&plan);
        check(&plan, &found);
        prop_assert_eq!(layout(&plan), found, "the layout is not deterministic");
    }
}

#[test]
fn five_thousand_single_boxes_keep_the_laws() {
    let picture = many(5_000);
    let all = ViewOptions {
        open: picture.figures.iter().map(|one| one.key.clone()).collect(),
        ..ViewOptions::default()
    };
    let (scene, layout) = picture.laid_out(&all);
    assert_eq!(scene.boxes.len(), 5_000);
    let mut seen = BTreeSet::new();
    for one in &layout.boxes {
        assert!(seen.insert((one.x.to_bits(), one.y.to_bits())), "two boxes share a place");
    }
}

#[test]
fn a_missing_dependency_stands_beside_its_dependent() {
    let figures = vec![
        figure("/a/1", "a", ValueState::Pending),
        figure("/a/2", "a", ValueState::Configured),
        figure("/b/1", "b", ValueState::Configured),
        missing("/nowhere"),
    ];
    let arrows = vec![
        arrow(0, 3, ArrowKind::Unmet),
        arrow(0, 2, ArrowKind::Met),
        arrow(1, 2, ArrowKind::Met),
    ];
    let (scene, layout) = picture(figures, arrows).laid_out(&ViewOptions::default());
    let absent = scene.boxes.iter().position(|one| one.beside.is_some()).unwrap();
    let owner = scene.boxes[absent].beside.unwrap();
    assert_eq!(scene.boxes[owner].label, "1");
    assert_eq!(scene.boxes[owner].band, scene.boxes[absent].band);
    let (left, right) = (layout.boxes[absent], layout.boxes[owner]);
    assert_eq!(left.y, right.y, "in one row");
    assert!(left.x < right.x && right.x - left.x - left.width < 60.0, "side by side");
}

#[test]
fn bands_are_in_the_order_of_their_mean_ranks() {
    let figures = vec![
        figure("/a", "a", ValueState::Configured),
        figure("/m", "m", ValueState::Configured),
        figure("/z", "z", ValueState::Configured),
    ];
    let arrows = vec![arrow(0, 1, ArrowKind::Met), arrow(1, 2, ArrowKind::Met)];
    let (scene, layout) = picture(figures, arrows).laid_out(&ViewOptions::default());
    let names: Vec<&str> = scene.bands.iter().map(|band| band.name.as_str()).collect();
    assert_eq!(names, ["z", "m", "a"], "not in the order of the alphabet");
    assert!(layout.bands[0].x < layout.bands[1].x && layout.bands[1].x < layout.bands[2].x);
}

#[test]
fn a_band_stands_right_of_the_band_it_depends_on_even_if_most_of_its_values_depend_on_nothing() {
    let mut figures = vec![
        figure("/base/1", "base", ValueState::Configured),
        figure("/base/2", "base", ValueState::Configured),
    ];
    let things = (0..9).map(|one| figure(&format!("/a/{one}"), "a", ValueState::Configured));
    figures.extend(things);
    let arrows = vec![arrow(0, 1, ArrowKind::Met), arrow(2, 0, ArrowKind::Met)];
    let (scene, layout) = picture(figures, arrows).laid_out(&ViewOptions::default());
    let place = |name: &str| scene.bands.iter().position(|band| band.name == name).unwrap();
    assert!(layout.bands[place("base")].x < layout.bands[place("a")].x);
}

#[test]
fn long_chains_continue_in_the_rows_below() {
    for (count, of_bands) in [(40, 1), (24, 24)] {
        let band = |index: usize| index % of_bands;
        let plan = Plan {
            spots: (0..count)
                .map(|index| Spot { band: band(index), beside: None, width: 120.0 })
                .collect(),
            links: (1..count).map(|index| (index, index - 1)).collect(),
            titles: vec![60.0; of_bands],
        };
        let grid = place(&plan);
        assert!(grid.columns <= 16, "{} columns for {count}", grid.columns);
        check(&plan, &layout(&plan));
    }
}

#[test]
fn large_bands_are_tiles_with_counts_and_every_value_is_in_a_box() {
    let picture = many(5_000);
    let closed = scene(&picture, &ViewOptions::default());
    assert!(closed.boxes.len() < 100, "{} boxes", closed.boxes.len());
    assert!(closed.box_of.iter().all(Option::is_some));
    let counted: usize = closed.boxes.iter().map(|one| one.members.len()).sum();
    assert_eq!(counted, 5_000);
    assert!(closed.boxes.iter().any(|one| one.label.contains("configured") && one.is_tile()));
    let unwell = |index: &usize| !picture.figures[*index].is_well();
    let alone = closed.boxes.iter().filter(|one| !one.is_tile() && one.members.iter().all(unwell));
    assert!(alone.count() > 40, "values that are not well are seen one by one");
}

#[test]
fn a_tile_opens_step_by_step_until_the_value_is_a_box_of_its_own() {
    let picture = many(50_000);
    let key = "/volume/04321";
    let options = ViewOptions::default().opening(key);
    let open = scene(&picture, &options);
    let place = picture.figures.iter().position(|one| one.key == key).unwrap();
    let found = &open.boxes[open.box_of[place].unwrap()];
    assert_eq!(found.members, [place]);
    assert!(open.boxes.len() < 500, "{} boxes", open.boxes.len());
    let band = open.bands.iter().find(|band| band.name == "volume").unwrap();
    assert_eq!(band.open, [key], "the band can be closed again");
}

#[test]
fn small_bands_stay_single_boxes() {
    let figures = (0..MOST_BOXES)
        .map(|index| figure(&format!("/a/{index}"), "a", ValueState::Configured))
        .collect();
    let scene = scene(&picture(figures, vec![]), &ViewOptions::default());
    assert_eq!(scene.boxes.len(), MOST_BOXES);
}

#[test]
fn the_filter_shows_what_is_not_well_and_its_reasons() {
    let figures = vec![
        figure("/a/1", "a", ValueState::Configured),
        figure("/a/2", "a", ValueState::Pending),
        figure("/a/3", "a", ValueState::Failed),
        figure("/b/1", "b", ValueState::Configured),
        missing("/nowhere"),
        Figure { uncertain: true, ..figure("/b/2", "b", ValueState::Configured) },
    ];
    let arrows = vec![
        arrow(1, 4, ArrowKind::Unmet),
        arrow(1, 0, ArrowKind::Met),
        arrow(3, 2, ArrowKind::Derives),
    ];
    let picture = picture(figures, arrows);
    let shown = |only| ViewOptions { only, ..ViewOptions::default() }.visible(&picture);
    assert_eq!(shown(Only::Unwell), [false, true, true, true, true, true]);
    assert_eq!(
        shown(Only::State(ValueState::Failed)),
        [false, false, true, true, false, false],
        "a derived value with its base"
    );
}

#[test]
fn several_arrows_between_two_boxes_are_one_line_with_their_number() {
    let picture = many(1_000);
    let scene = scene(&picture, &ViewOptions::default());
    let most = scene.lines.iter().map(|line| line.count).max().unwrap();
    assert!(most > 100, "{most}");
    let mut pairs = BTreeSet::new();
    for line in &scene.lines {
        assert!(pairs.insert((line.from, line.to, line.kind as u8)), "{line:?} is drawn twice");
    }
}

#[test]
fn hostile_text_is_shown_as_text() {
    let nasty = "</title></script><script>alert(1)</script>\"'&\u{1}\u{7f}\u{ffff}]]>";
    let mut one = figure(nasty, nasty, ValueState::Configured);
    one.value = format!("{{\"x\":\"{nasty}\"}}");
    let mut hostile = picture(vec![one, missing(nasty)], vec![arrow(0, 1, ArrowKind::Unmet)]);
    (hostile.title, hostile.footer) = (nasty.to_owned(), nasty.to_owned());
    let options = ViewOptions::default().opening(nasty);
    let svg = hostile.svg_view(&options);
    let inert = "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;\u{fffd}\u{fffd}\u{fffd}]]&gt;";
    assert!(svg.contains(inert), "{svg}");
    assert!(!svg.contains("<script"), "{svg}");
    #[cfg(feature = "rest")]
    {
        let page = hostile.page(&options, &[]);
        assert!(!page.contains("<script>alert"), "{page}");
        assert_eq!(page.matches("</script").count(), 2, "the model and the script of the page");
        assert_eq!(page.matches("</title>").count(), 1 + hostile.figures.len());
    }
}

#[test]
fn unmet_dependencies_are_drawn_above_met_ones() {
    let figures = vec![
        figure("a", "d1", ValueState::Pending),
        figure("b", "d1", ValueState::Configured),
        missing("c"),
    ];
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
}

#[test]
fn links_of_the_picture_are_relative() {
    let picture = many(500);
    let texts = [picture.svg(), picture.dot()];
    for text in texts {
        assert!(!text.contains("\"/scheduler") && !text.contains("href=\"/"), "{text}");
        assert!(text.contains("\"key-timeline?key=") || text.contains("\"graph?open="));
    }
}
