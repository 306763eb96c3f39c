package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// step is one thing of a page that a reader copies: a command, typed at a prompt
// or in backticks, or a block of another language.
type step struct {
	heading  string // of the last section or subsection
	language string // "sh" for a command, "inline" for one in backticks
	text     string
	shown    string // what the page prints behind a command at a prompt
}

// line is a command as one line, without the remark behind it. Tables of commands
// have it as their key.
func (s step) line() string {
	text := regexp.MustCompile(`(?m) +# .*$`).ReplaceAllString(s.text, "")
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "\\\n", " ")), " ")
}

// steps returns all steps of a page, in their order. A block without a language, or
// of sh or console, holds commands: those behind a prompt, or all lines if there is none.
func steps(page string) (list []step) {
	heading := ""
	for _, m := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$|^#+ +([^\n]*)$|`((?:bin/)?[a-z]+ [^`\n]+)`").FindAllStringSubmatch(page, -1) {
		language, text, inline := m[1], m[2], m[4]
		switch {
		case m[3] != "":
			heading = m[3]
		case inline != "":
			if tool.MatchString(inline) {
				list = append(list, step{heading: heading, language: "inline", text: inline})
			}
		case language == "" || language == "sh" || language == "console":
			for _, c := range commands(text) {
				c.heading = heading
				list = append(list, c)
			}
		default:
			list = append(list, step{heading: heading, language: language, text: text})
		}
	}
	return list
}

// lastBlock returns the last block of a language on a page.
func lastBlock(t *testing.T, page, language string) (text string) {
	t.Helper()
	for _, st := range steps(testenv.ReadFile(t, root+page)) {
		if st.language == language {
			text = st.text
		}
	}
	if text == "" {
		t.Fatalf("%s has no block of %s", page, language)
	}

	return text
}

// tool recognises a command in backticks.
var tool = regexp.MustCompile(`^(?:(?:bin/)?notifyd|curl|docker|helm|kubectl|make|psql|ssh|sudo|systemctl|go (?:build|generate|install|mod|run|test|tool|vet)) `)

// commands splits a block. A line goes on behind a backslash, a pipe, and in a document
// that ends with EOF. Behind a command at a prompt are the lines that it prints.
func commands(block string) (list []step) {
	prompt := strings.HasPrefix(block, "$ ") || strings.Contains(block, "\n$ ")
	open := ""
	for line := range strings.Lines(block) {
		full := line
		line = strings.TrimRight(line, " \n")
		typed, isTyped := strings.CutPrefix(line, "$ ")
		switch {
		case open != "":
			open += "\n" + line
		case prompt && !isTyped:
			if len(list) > 0 {
				list[len(list)-1].shown += full
			}
			continue
		case strings.TrimSpace(line) == "":
			continue
		default:
			open = typed
		}
		if strings.HasSuffix(line, `\`) || strings.HasSuffix(line, "|") || strings.Contains(open, "<<'EOF'") && line != "EOF" {
			continue
		}
		list = append(list, step{language: "sh", text: open})
		open = ""
	}
	return list
}

// alike compares what a command has printed with the block of a page. In the block, "..." stands
// for any text, and a line of it for any lines.
func alike(block, printed string) bool {
	pattern := ""
	for line := range strings.SplitSeq(settled(block), "\n") {
		if line == "..." {
			pattern += `(?s:.*\n)?`
			continue
		}
		pattern += strings.ReplaceAll(regexp.QuoteMeta(line), `\.\.\.`, ".*") + "\n"
	}

	return regexp.MustCompile("^" + pattern + "$").MatchString(settled(printed) + "\n")
}

// settled makes what differs from run to run, or from machine to machine, the same.
func settled(s string) string {
	for _, m := range []struct{ what, is string }{
		{`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z`, "TIME"},
		{`(?m)^Date: .*$`, "Date: TIME"},
		{`\b\d+(\.\d+)?(h\d\dm|m\d\ds|µs|ms|s|m|h|d)\b`, "AGO"},
		{`127\.0\.0\.1:\d+`, "ADDRESS"},
		{`MAIL_PORT=\d+`, "MAIL_PORT=PORT"},
		{`relays +\S+, process \d+, \S+, up`, "relays HOST, process PID, VERSION, up"},
		{`(oid|process|session|server|table) \d+`, "$1 PID"},
		{`(by|TIME) +\S+@\S+`, "$1 SOMEBODY"},
		{`(?m)- +\d+$`, "- PID"}, // a session in a table
		{`(?m)[ \t\r]+$`, ""},
		{` +`, " "},
	} {
		s = regexp.MustCompile(m.what).ReplaceAllString(s, m.is)
	}

	return strings.TrimSpace(s)
}

func TestAlike(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		block, printed string
		want           bool
	}{
		{"at  2026-11-21 09:30:00Z, 3s ago", "at 2026-12-01 04:00:00.5Z, 4ms ago\n", true},
		{"1 event", "2 events", false},
		{"a ... z\nend", "a b c z\nend", true},
		{"a\n...\nend", "a\nb\nc\nend", true},
		{"a\n...", "b\na", false},
		{"a", "a\nb", false},
		{"a.b", "axb", false},
	} {
		if alike(c.block, c.printed) != c.want {
			t.Errorf("%q and %q: want %v", c.block, c.printed, c.want)
		}
	}
}

// untested are the commands that no test types, by program, each with the test that comes nearest.
func untested() map[string]string {
	return map[string]string{
		`^(sudo )?systemctl `:    "no systemd to talk to: TestDeployUnit has the unit read, TestSystemd has the daemon's side, and TestRunbookPage sends the signal",
		`^docker `:               "no Docker daemon: TestDeployImage holds the Dockerfile against the program, TestCompose of deploy/check loads the compose file",
		`^(helm |kubectl --)`:    "no cluster: TestDeployChartCommand renders the chart with the same flags, TestDeployChart has helm lint it",
		`^(cosign|gh) `:          "needs a signed release: TestReleaseIsSigned of scripts holds the workflow against it",
		`notifyd_\*|SHA256SUMS$`: "needs an archive, which TestDeployArchive of internal/dist/cmd/dist packs and types this with",
		`^ssh `:                  "there is no other machine to log in at",
		`^make `:                 "runs these tests, or builds as they do: TestUntested asks make whether it could",
		`^(cd \S+ && )?(go (mod|run|test|tool)|golangci-lint) `: "runs programs that have tests; TestUntested looks for their directories",
	}
}

// isUntested reports whether a rule of untested is about a command.
func isUntested(line string) bool {
	for rule := range untested() {
		if regexp.MustCompile(rule).MatchString(line) {
			return true
		}
	}

	return false
}

// pageTest is a test that runs all steps of a page, and would fail on a new one that it
// cannot run: it goes through steps, or through all blocks.
type pageTest struct{ dir, test string }

// pageTests are those of the pages with commands or SQL. SQL of other pages is run by
// TestDocsBlocks, and commands in backticks by TestInlineCommands.
func pageTests() map[string]pageTest {
	return map[string]pageTest{
		"README.md":                  {"cmd/notifyd", "TestReadmePage"},
		"CONTRIBUTING.md":            {"cmd/notifyd", "TestContributingPage"},
		"docs/README.md":             {"cmd/notifyd", "TestShortPages"},
		"docs/bytes.md":              {"cmd/notifyd", "TestBytesPage"},
		"docs/capture.md":            {"cmd/notifyd", "TestCapturePage"},
		"docs/concepts.md":           {"cmd/notifyd", "TestShortPages"},
		"docs/console.md":            {"cmd/notifyd", "TestConsolePage"},
		"docs/faq.md":                {"cmd/notifyd", "TestShortPages"},
		"docs/dead-letters.md":       {"cmd/notifyd", "TestDeadLettersPage"},
		"docs/deploy.md":             {"cmd/notifyd", "TestDeployRoles"},
		"docs/library.md":            {"cmd/notifyd", "TestSetUpModule"},
		"docs/destinations/email.md": {"cmd/notifyd", "TestEmailPage"},
		"docs/managed-postgresql.md": {"cmd/notifyd", "TestManagedPage"},
		"docs/migrating.md":          {"cmd/notifyd", "TestMigratePages"},
		"docs/outboxes.md":           {"cmd/notifyd", "TestOutboxesPage"},
		"docs/performance.md":        {"cmd/bench", "TestPerformancePage"},
		"docs/quickstart.md":         {"cmd/notifyd", "TestQuickstart"},
		"docs/reload.md":             {"cmd/notifyd", "TestReloadPage"},
		"docs/shards.md":             {"cmd/notifyd", "TestShardsPage"},
		"docs/streams.md":            {"cmd/notifyd", "TestStreamsPage"},
		"docs/retention.md":          {"cmd/notifyd", "TestRetentionPage"},
		"docs/runbook.md":            {"cmd/notifyd", "TestRunbookPage"},
		"docs/status-and-doctor.md":  {"cmd/notifyd", "TestStatusAndDoctorPage"},
		"docs/upgrades.md":           {"cmd/notifyd", "TestUpgradesPage"},
		"docs/templates.md":          {"cmd/notifyd", "TestTemplatesPageCommands"},
		"docs/tracing.md":            {"cmd/notifyd", "TestTracingPage"},
		"examples/grpc/README.md":    {"examples/grpc", "TestReadme"},
		"examples/orders/README.md":  {"examples/orders", "TestReadme"},
	}
}

// compilers are the tests that find every block of Go of a page in code that is
// compiled and run.
func compilers() map[string]pageTest {
	return map[string]pageTest{
		"README.md":                    {"integration", "TestReadmeIsExample"},
		"docs/bytes.md":                {"outbox", "TestBytesPageIsExample"},
		"docs/consumers.md":            {"inbox", "TestDocsAreExamples"},
		"docs/custom-destination.md":   {"handlers/handlertest", "TestDocsAreTheExample"},
		"docs/dead-letters.md":         {"cmd/notifyd", "TestDeadLettersPage"},
		"docs/destinations.md":         {"handlers", "TestDestinationsPage"},
		"docs/library.md":              {"observe/admin", "TestLibraryPage"},
		"docs/testing.md":              {"outbox/outboxtest", "TestTestingPage"},
		"docs/tracing.md":              {"cmd/notifyd", "TestTracingPage"},
		"handlers/watermill/README.md": {"handlers/watermill", "TestReadme"},
		"docs/writers.md":              {"integration/writers", "TestGoBlocks"},
	}
}

// runners are the languages whose blocks on a page are run by tests of integration/writers.
func runners() map[string][]string {
	return map[string][]string{
		"README.md":       {"python", "js", "java"},
		"docs/testing.md": {"python", "js", "java"},
		"docs/writers.md": {"python", "js", "prisma", "java", "ruby", "csharp"},
	}
}

// checkPageTests looks whether these tests are there.
func checkPageTests(t *testing.T, all map[string]pageTest) {
	t.Helper()
	for page, p := range all {
		files, err := filepath.Glob(root + p.dir + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(root + page); err != nil {
			t.Errorf("the page of %s: %v", p.test, err)
		}
		found := slices.ContainsFunc(files, func(name string) bool {
			text := testenv.ReadFile(t, name)
			return strings.Contains(text, "\nfunc "+p.test+"(t *testing.T)") && strings.Contains(text, filepath.Base(page))
		})
		if !found {
			t.Errorf("no file of %s has %s, which is to run %s", p.dir, p.test, page)
		}
	}
}

// TestUntested: each rule is about a command of a page. Such a command has targets that make knows, and files that are there.
func TestUntested(t *testing.T) {
	t.Parallel()
	lines := make(map[string]bool)
	for _, page := range docPages(t) {
		for _, st := range steps(testenv.ReadFile(t, page)) {
			if line := st.line(); isUntested(line) {
				lines[line] = true
			}
		}
	}

	for rule := range untested() {
		found := slices.ContainsFunc(slices.Collect(maps.Keys(lines)), regexp.MustCompile(rule).MatchString)
		if !found {
			t.Errorf("no page has a command for the rule %s", rule)
		}
	}
	for line := range lines {
		words := shellWords(t, line)
		for _, word := range words {
			if path := regexp.MustCompile(`^(?:\./)?(?:deploy|cmd|handlers)/[\w./-]*`).FindString(word); path != "" {
				isThere(t, strings.TrimSuffix(path, "/..."))
			}
		}
		if words[0] == "make" {
			makeKnows(t, words[1:])
		}
	}
}

func TestSteps(t *testing.T) {
	t.Parallel()
	const page = "# One\nSay `notifyd run`, `x y`, `make test`.\n```\nnotifyd a \\\n  -b # why\n\necho |\n  cat\n```\n## Two\n" +
		"```console\nout\n$ notifyd c\nout\n\n  more\n```\n```sql\nSELECT 1;\n```\n```sh\ncat > f <<'EOF'\na\n\nb\nEOF\nls\n```\n"
	want := []step{
		{"One", "inline", "notifyd run", ""},
		{"One", "inline", "make test", ""},
		{"One", "sh", "notifyd a \\\n  -b # why", ""},
		{"One", "sh", "echo |\n  cat", ""},
		{"Two", "sh", "notifyd c", "out\n\n  more\n"},
		{"Two", "sql", "SELECT 1;\n", ""},
		{"Two", "sh", "cat > f <<'EOF'\na\n\nb\nEOF", ""},
		{"Two", "sh", "ls", ""},
	}
	got := steps(page)
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%q, want %q", got[i], want[i])
		}
	}
	if line := got[2].line(); line != "notifyd a -b" {
		t.Errorf("%q", line)
	}
}
