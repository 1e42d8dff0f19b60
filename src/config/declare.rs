//! The macros that `flags.rs` declares with, so that it holds declarations alone.

/// Declares the headings of `--help`, in the order in which they are printed.
macro_rules! sections {
    ($( $name:ident = $title:literal, )+) => {
        /// A heading of `--help` and the reference page.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Section { $( $name, )+ }

        impl Section {
            pub const ALL: &[Section] = &[$( Section::$name, )+];

            pub fn title(self) -> &'static str {
                match self { $( Section::$name => $title, )+ }
            }
        }
    };
}

/// Declares the flags, section by section in the order of `--help`:
///
/// ```text
/// /// The sentence of help, which is the field's documentation too
/// field: Kind = "default as typed", SETS | OF | COMMANDS, name "other than the field's", alias "old_name", short 'x', shapes graphs, processes agree;
/// ```
///
/// Without a default the kind is an `Option` or a list. `processes agree` or `differ` where its section
/// says otherwise ([`Section::is_agreed`]). Two flags of different commands may share a
/// name; their fields then differ.
macro_rules! flags {
    ({ $($sections:tt)+ }) => { flags! { $($sections)+ } };
    ($( $section:ident { $(
        $(#[doc = $help:literal])+
        $field:ident: $kind:ty $(= $default:literal)?, $($commands:ident)|+
        $(, name $name:literal)? $(, alias $alias:literal)* $(, short $short:literal)?
        $(, shapes $shaped:ident)? $(, processes $processes:ident)?;
    )+ } )+) => {
        /// Every flag that is built.
        pub static FLAGS: &[Flag] = &[$($(
            Flag {
                name: flags!(@first $($name,)? stringify!($field)),
                aliases: &[$($alias),*],
                kind: KindInfo::of::<$kind>(),
                default: flags!(@first $($default,)? ""),
                help: concat!($($help),+).trim_ascii(),
                commands: &[$($commands),+],
                section: Some(Section::$section),
                support: Support::Built(|flags, texts, origin| {
                    flags.$field.take::<$kind>(texts, origin)
                }),
                short: flags!(@first $(Some($short),)? None),
                shapes_graphs: flags!(@first $(flags!(@shapes $shaped),)? false),
                processes_agree: flags!(
                    @first $(flags!(@processes $processes),)? Section::$section.is_agreed()
                ),
            },
        )+)+];

        /// What was typed: each flag's value, the default where nobody gave one. Fields of flags
        /// that the command doesn't take have their defaults.
        #[derive(PartialEq)]
        pub struct Flags {
            pub command: CommandName,
            /// What was given, by name, as it was typed.
            pub typed: Typed,
            /// Settings that were accepted and change nothing, a sentence each.
            pub notes: Vec<String>,
            /// What is wrong with what was typed or read; `rules::check` reports it.
            pub mistakes: Vec<UsageError>,
            /// What the card of a fetched data set notes of its columns.
            pub features: Features,
            /// The weight of each training file, where they are mixed.
            pub weights: Vec<f64>,
            /// The training files are those of a folder that was named.
            pub is_folder: bool,
            /// The URL of the bucket's folder that the output directory stands for.
            pub bucket: Option<String>,
            /// How many processes a launcher will start for this command, in all and on this
            /// machine; `None` where the command speaks for its own process.
            pub processes: Option<(usize, usize)>,
            $($(
                $(#[doc = $help])+
                pub $field: Setting<<$kind as Kind>::Value>,
            )+)+
        }

        impl Flags {
            /// All defaults.
            pub fn new(command: CommandName) -> Flags {
                Flags {
                    command,
                    typed: Typed::default(),
                    notes: Vec::new(),
                    mistakes: Vec::new(),
                    features: Features::new(),
                    weights: Vec::new(),
                    is_folder: false,
                    bucket: None,
                    processes: None,
                    $($( $field: flags!(@initial
                        flags!(@first $($name,)? stringify!($field)), $kind $(, $default)?
                    ), )+)+
                }
            }
        }
    };
    (@shapes graphs) => { true };
    (@processes agree) => { true };
    (@processes differ) => { false };
    (@first $first:expr $(, $other:expr)?) => { $first };
    (@initial $name:expr, $kind:ty, $default:literal) => {
        Setting::with_default::<$kind>($name, $default)
    };
    (@initial $name:expr, $kind:ty) => { Setting::absent::<$kind>($name) };
}

/// Declares names without a flag, for the commands of each block: names, what is accepted, and why.
macro_rules! unbuilt {
    ($( $commands:ident { $( $($name:ident)+: $support:expr, $help:literal; )+ } )+) => {
        /// Every name that is known and has no flag.
        pub static UNBUILT: &[Flag] = &[$($($(
            Flag {
                name: stringify!($name),
                aliases: &[],
                kind: KindInfo::of::<Anything>(),
                default: "",
                help: $help,
                commands: &[$commands],
                section: None,
                support: $support,
                short: None,
                shapes_graphs: false,
                processes_agree: false,
            },
        )+)+)+];
    };
}

pub(super) use {flags, sections, unbuilt};
