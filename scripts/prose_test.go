package scripts

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var updateProse = flag.Bool("update-prose", false, "write prose.txt anew")

// prosePatterns match phrases that native technical English hardly has. They find about a quarter of what a careful reader
// would rewrite, and two of five hits are innocent: the counts may fall, and never rise.
func prosePatterns() (all []*regexp.Regexp) {
	for _, p := range []string{
		`\b(is|are|as|has|have|with|than|of) (that|those) of\b`,
		`\bof (which|whom)\b|\bto whom\b`,
		`\b(there (is|are|was|were) none|has none|are none|is none)\b`,
		`\b(does|do|did) (so|that|it) for\b|\bdoes so\b`,
		"\\bfrom [\\w$.`-]+( \\w+)? on\\b",
		`\bfor ever\b|\bany more\b`,
		`\bwhat (became|becomes|is|was|has|it|they|the|comes|waits|goes|failed|can|cannot|nobody) `,
		`\b(be|is|was|been) (said|told)\b`,
		`\b(nobody|whoever|whichever|lest|unheard|beside|besides|to be had|in vain)\b`,
		`\b(by itself|of its own|for itself|by themselves)\b`,
		`\b(goes on|go on|comes to|come to|let through|lets? go|takes? note|stands? in line)\b`,
	} {
		all = append(all, regexp.MustCompile(p))
	}
	return all
}

// isNo matches "is no limit", but not "is no longer".
var isNo = regexp.MustCompile(`\b(?:is|are) no ([a-z]+)\b`)

func translated(text string, patterns []*regexp.Regexp) bool {
	for _, m := range isNo.FindAllStringSubmatch(text, -1) {
		if m[1] != "longer" {
			return true
		}
	}
	return slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(text) })
}

// passage is a comment, or a paragraph of a page.
type passage struct {
	line int
	text string
}

var (
	ownLine  = regexp.MustCompile(`^\s*//`)
	trailing = regexp.MustCompile(`\s//\s(.*)$`)
	fence    = regexp.MustCompile("(?s)```.*?```")
	blank    = regexp.MustCompile(`\n\s*\n`)
)

// commentsOf returns the comments of a Go file. Directives are none.
func commentsOf(text string) (all []passage) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		own := ownLine.MatchString(lines[i])
		switch m := trailing.FindStringSubmatch(lines[i]); {
		case own && !strings.Contains(lines[i], "//nolint") && !strings.Contains(lines[i], "//go:"):
			var words []string
			begin := i
			for ; i < len(lines) && ownLine.MatchString(lines[i]); i++ {
				words = append(words, strings.TrimLeft(strings.TrimSpace(lines[i]), "/"))
			}
			i--
			all = append(all, passage{begin + 1, strings.Join(strings.Fields(strings.Join(words, " ")), " ")})
		case !own && m != nil && !strings.Contains(m[1], "nolint"):
			all = append(all, passage{i + 1, m[1]})
		}
	}
	return all
}

// paragraphsOf returns the paragraphs of a page, without code and tables.
func paragraphsOf(text string) (all []passage) {
	text = fence.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
	line, from := 1, 0
	add := func(block string) {
		if trimmed := strings.TrimSpace(block); trimmed != "" && trimmed[0] != '|' && trimmed[0] != '<' {
			all = append(all, passage{line, strings.Join(strings.Fields(block), " ")})
		}
	}
	for _, gap := range blank.FindAllStringIndex(text, -1) {
		add(text[from:gap[0]])
		line += strings.Count(text[from:gap[1]], "\n")
		from = gap[1]
	}
	add(text[from:])
	return all
}

// proseHits returns the passages that match, by directory and kind, and how many passages there are.
func proseHits(t *testing.T) (hits map[string][]string, all map[string]int) {
	t.Helper()
	hits, all = make(map[string][]string), make(map[string]int)
	patterns := prosePatterns()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != ".." && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		var kind string
		var passages func(text string) []passage
		switch {
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			kind, passages = "comments", commentsOf
		case strings.HasSuffix(name, ".md"):
			kind, passages = "paragraphs", paragraphsOf
		default:
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if kind == "comments" && bytes.Contains(text, []byte("\n// Code generated ")) || bytes.HasPrefix(text, []byte("// Code generated ")) {
			return nil
		}
		place := strings.TrimPrefix(strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), ".."), "/")
		key := kind + " " + max(place, ".")
		for _, p := range passages(string(text)) {
			if len(strings.Fields(p.text)) < 6 {
				continue
			}
			all[kind]++
			if translated(p.text, patterns) {
				hits[key] = append(hits[key], fmt.Sprintf("%s:%d: %.160s", strings.TrimPrefix(filepath.ToSlash(path), "../"), p.line, p.text))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return hits, all
}

// TestProse is a ratchet: no directory has more passages that read as translated than prose.txt has for it. A count that
// has fallen is written down by
//
//	go test ./scripts -run TestProse -update-prose
func TestProse(t *testing.T) {
	t.Parallel()
	hits, all := proseHits(t)
	for kind, n := range all {
		found := 0
		for key, places := range hits {
			if strings.HasPrefix(key, kind) {
				found += len(places)
			}
		}
		t.Logf("%s: %d of %d, %.1f %%", kind, found, n, 100*float64(found)/float64(n))
	}
	ratchet(t, "prose.txt", hits, *updateProse, "-update-prose", "passages read as translated", "write the new ones in plain words")
}
