use proptest::prelude::*;

use super::*;
use crate::group::Member;

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

fn white(text: &str) -> TopicFilter {
    TopicFilter::new(Pattern::WhiteList, text).unwrap()
}

fn matches(text: &str, name: &str) -> bool {
    match white(text).matches(&topic(name)) {
        Matches::Yes => true,
        Matches::No => false,
        Matches::Beyond { reason } => panic!("{reason}"),
    }
}

// L-40, D8
#[test]
fn text_is_cleaned_as_the_jvm_cleans_it() {
    for (raw, regex) in [
        ("t1,ab", "t1|ab"),
        (" t1 , ab ", "t1|ab"),
        ("\"t1,ab\"", "t1|ab"),
        ("\"'t1'\"", "t1"),
        ("\tt1\n", "t1"),
        ("t\t1", "t\t1"),
        ("t1,,ab", "t1||ab"),
        ("", ""),
        ("t[0-9]{1,2}", "t[0-9]{1|2}"),
    ] {
        assert_eq!(clean(raw), regex, "{raw:?}");
        assert_eq!(clean(regex), regex, "{raw:?}");
    }
}

#[test]
fn a_tab_inside_covers_no_topic() {
    assert!(!matches("t\t1", "t1"));
}

#[test]
fn a_white_list_covers_whole_names() {
    assert!(matches("t1,ab", "t1"));
    assert!(matches("t1,ab", "ab"));
    assert!(!matches("t1,ab", "t12"));
    assert!(!matches("t1,ab", "xt1"));
    assert!(!matches("t1", "T1"));
    assert!(matches("a|ab|abc", "abc"));
}

#[test]
fn a_black_list_covers_the_rest_and_an_empty_one_all() {
    let black = |text| TopicFilter::new(Pattern::BlackList, text).unwrap();
    assert_eq!(black("t1,t2").matches(&topic("t1")), Matches::No);
    assert_eq!(black("t1,t2").matches(&topic("t3")), Matches::Yes);
    assert_eq!(black("").matches(&topic("t3")), Matches::Yes);
    assert_eq!(white("").matches(&topic("t3")), Matches::No);
}

/// Expression, names it covers, names it does not; every line was tried on Java 17.
const AS_JAVA: &[(&str, &[&str], &[&str])] = &[
    (
        r"test-(?!bad\b)[\w]+",
        &["test-good", "test-badly"],
        &["test-bad", "test-"],
    ),
    (r"(?i)Orders\..*", &["orders.eu", "ORDERS.x"], &["orders"]),
    (r"(?i:a)b", &["ab", "Ab"], &["aB"]),
    (r"a(?i)b|c", &["ab", "aB", "C"], &["Ab"]),
    (r"(?:(?i)a)b", &["Ab"], &["AB"]),
    (r"(?i)[^a]", &["b"], &["a", "A"]),
    (r"(?s)a.c(?-s)", &["abc"], &["ac"]),
    (r"[a-z&&[^bc]]+", &["ad"], &["ab"]),
    (r"[a-z&&[def]&&[ef]]", &["e", "f"], &["d"]),
    (r"[a-c[x-z]]+", &["ax"], &["d"]),
    (r"\p{Alpha}+\p{Digit}*", &["abc12"], &["1a"]),
    (r"\p{Lu}\P{Lu}+", &["Ab1"], &["AB"]),
    (r"\pL+", &["ab"], &["a1"]),
    (r"\Qa.b\E+", &["a.b", "a.bb"], &["axb"]),
    (r"a\.\Q.b", &["a..b"], &["a.xb"]),
    (r"(\w+)-\1", &["ab-ab"], &["ab-ba"]),
    (r"(?<n>[ab])x\k<n>", &["axa"], &["axb"]),
    (r"a*+ab|b", &["b"], &["aab"]),
    (r"(?>a|ab)c", &["ac"], &["abc"]),
    (r"(?<=a)b|ab(?<!b)", &[], &["b", "ab"]),
    (r".(?<=a)b", &["ab"], &["bb"]),
    (r"\x61\u0062\0143\x{64}\cn", &["abcd."], &["abcd"]),
    (r"^a$", &["a"], &["aa"]),
    (r"\Aa\b.b\Z", &["a-b", "a.b"], &["a_b", "acb"]),
    (r"a{3}", &["aaa"], &["aa", "aaaa"]),
    (r"(a|b){2}?", &["ab"], &["a"]),
    (r"a|", &["a"], &["b"]),
    (r"a}]", &[], &["a"]),
    (r"[a\-z]", &["a", "-", "z"], &["b"]),
    (r"[a-]", &["-"], &["b"]),
    (r"[\w-.]+", &["a-b.c"], &[]),
    (r"\H\V\S\D\W", &["aaaa-"], &["aaaaa"]),
    (r"(?x)ab", &["ab"], &[]),
    (r"(?u)k(?iu)k", &["kK"], &["KK"]),
    ("ſ|\u{212a}", &[], &["s", "K"]),
    (r"((a)|(b))+", &["ab"], &["c"]),
    (r"(a)?b\1", &["aba"], &["b"]),
    (r"(a*)*b", &["aab", "b"], &["a"]),
    (r"(((((((((((a))))))))))b)\11", &["aba"], &["abab"]),
    (r"(a)\10", &["aa0"], &["aa"]),
];

// L-39, D7
#[test]
fn an_expression_means_what_it_means_in_java() {
    for (text, yes, no) in AS_JAVA {
        yes.iter()
            .for_each(|name| assert!(matches(text, name), "{text} {name}"));
        no.iter()
            .for_each(|name| assert!(!matches(text, name), "{text} {name}"));
    }
}

// r113
#[test]
fn a_filter_that_is_none_is_refused_at_once_with_the_reason() {
    let error = TopicFilter::new(Pattern::WhiteList, "t[0-9]{1,2}").unwrap_err();
    assert_eq!(
        error.to_string(),
        "topic filter \"t[0-9]{1|2}\" is refused: it has a count in braces that is not one number"
    );
    assert!(TopicFilter::new(Pattern::WhiteList, "(").is_err());
    assert!(TopicFilter::new(Pattern::Static, "t").is_err());
}

/// Needs a number of steps that doubles with every letter.
const SLOW: &str = r"(a|aa)+(?!x)b";

#[test]
fn a_filter_that_would_take_for_ever_answers_beyond() {
    let answer = white(SLOW).matches(&topic(&"a".repeat(200)));
    let Matches::Beyond { reason } = answer else {
        panic!("{answer:?}")
    };
    assert!(reason.contains("10000 steps on topic aaa"), "{reason}");
    assert_eq!(white(SLOW).matches(&topic("aab")), Matches::Yes);
}

#[test]
fn a_filter_that_would_grow_for_ever_is_refused() {
    for text in [
        "(((.{100}){10}){10}){10}",
        "((.{100}){100}|(.{99}){100}|(.{98}){100})",
    ] {
        let error = TopicFilter::new(Pattern::WhiteList, text).unwrap_err();
        assert!(error.to_string().contains("is refused"), "{error}");
    }
}

fn view(members: &[(&str, Subscription)], topics: &[&str]) -> GroupView {
    let members = members.iter().map(|(id, subscription)| {
        let member = Member {
            subscription: subscription.clone(),
            is_ours: false,
        };
        (ConsumerId::new(*id), member)
    });
    GroupView {
        members: members.collect(),
        topics: topics.iter().map(|name| topic(name)).collect(),
        ..GroupView::default()
    }
}

fn filter(pattern: Pattern, regex: &str, streams: u32) -> Subscription {
    Subscription::Filter {
        pattern,
        regex: regex.into(),
        streams,
    }
}

fn of(expansion: &Expansion, id: &str) -> String {
    let topics = expansion.subscriptions[&ConsumerId::new(id)].iter();
    let topics: Vec<String> = topics.map(|(topic, n)| format!("{topic}*{n}")).collect();
    topics.join(" ")
}

#[test]
fn members_get_the_topics_their_registrations_cover() {
    let named = Subscription::Topics(BTreeMap::from([(topic("absent"), 3)]));
    let view = view(
        &[
            ("named", named),
            ("white", filter(Pattern::WhiteList, "a.*", 2)),
            ("black", filter(Pattern::BlackList, "a.*,c", 1)),
            ("empty", filter(Pattern::WhiteList, "z", 1)),
        ],
        &["a1", "a2", "b", "c"],
    );
    let expansion = expand(&view, InternalTopics::OffsetsAndTransactions);
    assert_eq!(of(&expansion, "named"), "absent*3");
    assert_eq!(of(&expansion, "white"), "a1*2 a2*2");
    assert_eq!(of(&expansion, "black"), "b*1");
    assert_eq!(of(&expansion, "empty"), "");
    assert!(expansion.unsure.is_empty() && expansion.beyond.is_empty());
}

// L-30
#[test]
fn internal_topics_are_dropped_from_filters_as_the_release_drops_them() {
    let offsets = Subscription::Topics(BTreeMap::from([(topic("__consumer_offsets"), 1)]));
    let view = view(
        &[
            ("all", filter(Pattern::WhiteList, ".*", 1)),
            ("named", offsets),
        ],
        &["__consumer_offsets", "__transaction_state", "t"],
    );
    for (rule, covered) in [
        (
            InternalTopics::None,
            "__consumer_offsets*1 __transaction_state*1 t*1",
        ),
        (InternalTopics::Offsets, "__transaction_state*1 t*1"),
        (InternalTopics::OffsetsAndTransactions, "t*1"),
    ] {
        let expansion = expand(&view, rule);
        assert_eq!(of(&expansion, "all"), covered);
        assert_eq!(of(&expansion, "named"), "__consumer_offsets*1");
    }
}

// L-27, r112
#[test]
fn doubled_backslashes_are_obeyed_as_they_stand() {
    let view = view(
        &[
            ("once", filter(Pattern::WhiteList, r"t\.x", 1)),
            ("twice", filter(Pattern::WhiteList, r"t\\.x", 1)),
        ],
        &["t.x"],
    );
    let expansion = expand(&view, InternalTopics::Offsets);
    assert_eq!(of(&expansion, "once"), "t.x*1");
    assert_eq!(of(&expansion, "twice"), "");
}

// D7
#[test]
fn a_filter_beyond_us_leaves_all_it_could_cover_unsure() {
    let named = Subscription::Topics(BTreeMap::from([(topic("absent"), 1), (topic("t"), 1)]));
    let view = view(
        &[
            ("odd", filter(Pattern::WhiteList, r"\X", 1)),
            ("named", named),
        ],
        &["__consumer_offsets", "t", "u"],
    );
    let expansion = expand(&view, InternalTopics::Offsets);
    assert_eq!(expansion.unsure, BTreeSet::from([topic("t"), topic("u")]));
    assert_eq!(of(&expansion, "odd"), "");
    assert_eq!(of(&expansion, "named"), "absent*1 t*1");
    assert_eq!(
        expansion.beyond[&ConsumerId::new("odd")],
        r#"topic filter "\X" is refused: it has \X"#
    );
}

#[test]
fn a_filter_too_slow_for_some_names_leaves_only_those_unsure() {
    let slow = "a".repeat(200);
    let view = view(
        &[("slow", filter(Pattern::BlackList, SLOW, 1))],
        &[&slow, "ab", "t"],
    );
    let expansion = expand(&view, InternalTopics::Offsets);
    assert_eq!(expansion.unsure, BTreeSet::from([topic(&slow)]));
    assert_eq!(of(&expansion, "slow"), "t*1");
    assert_eq!(expansion.beyond.len(), 1);
}

#[test]
fn many_slow_names_are_not_all_tried() {
    let names: Vec<String> = (0..3000)
        .map(|n| format!("{}{n}", "a".repeat(200)))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let view = view(&[("slow", filter(Pattern::WhiteList, SLOW, 1))], &names);
    assert_eq!(expand(&view, InternalTopics::Offsets).unsure.len(), 3000);
}

proptest! {
    // D7
    #[test]
    fn no_expression_makes_it_panic(
        text in r"([a-c.\[\]\(\)\?\*\+\{\}\|\\^$&<>=!:0-9pQEdwbixuUk-]|\PC){0,24}",
        name in "t[a-zA-Z0-9._-]{0,20}",
    ) {
        if let Ok(filter) = TopicFilter::new(Pattern::WhiteList, &text) {
            let _ = filter.matches(&topic(&name));
        }
    }

    #[test]
    fn a_plain_list_of_names_covers_exactly_these(names in prop::collection::btree_set("[a-zA-Z0-9_-]{1,6}", 1..6), other in "[a-zA-Z0-9_-]{1,6}") {
        let list: Vec<&str> = names.iter().map(String::as_str).collect();
        let filter = white(&list.join(" , "));
        for name in &names {
            prop_assert_eq!(filter.matches(&topic(name)), Matches::Yes);
        }
        let is_in = names.contains(&other);
        prop_assert_eq!(filter.matches(&topic(&other)) == Matches::Yes, is_in);
    }

    // A pattern without anything special means the same to the plain engine, which never goes back.
    #[test]
    fn on_the_common_subset_it_equals_the_plain_engine(
        text in r"([ab.]|[ab]\*|\(a\|b\)|\[ab\]\+|a\?){1,8}",
        name in "[ab]{1,8}",
    ) {
        let plain = fancy_regex::Regex::new(&format!(r"\A(?:{text})\z")).unwrap();
        prop_assert_eq!(matches(&text, &name), plain.is_match(&name).unwrap());
    }
}
