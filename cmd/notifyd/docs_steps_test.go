package main

import (
	"os"
	"os/exec"
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
				list = append(list, step{heading, "inline", inline})
			}
		case language == "" || language == "sh" || language == "console":
			for _, c := range commands(text) {
				list = append(list, step{heading, "sh", c})
			}
		default:
			list = append(list, step{heading, language, text})
		}
	}
	return list
}

// tool recognises a command in backticks.
var tool = regexp.MustCompile(`^(?:(?:bin/)?notifyd|curl|docker|helm|kubectl|make|psql|ssh|sudo|systemctl|go (?:build|generate|install|mod|run|test|tool|vet)) `)

// commands splits a block. A line goes on behind a backslash, a pipe, and in a document
// that ends with EOF.
func commands(block string) (list []string) {
	prompt := strings.HasPrefix(block, "$ ") || strings.Contains(block, "\n$ ")
	open := ""
	for line := range strings.Lines(block) {
		line = strings.TrimRight(line, " \n")
		typed, isTyped := strings.CutPrefix(line, "$ ")
		switch {
		case open != "":
			open += "\n" + line
		case prompt && !isTyped || strings.TrimSpace(line) == "":
			continue
		default:
			open = typed
		}
		if strings.HasSuffix(line, `\`) || strings.HasSuffix(line, "|") || strings.Contains(open, "<<'EOF'") && line != "EOF" {
			continue
		}
		list, open = append(list, open), ""
	}
	return list
}

// named are the commands that a test cannot run, each with the reason, and with the
// test that comes nearest.
func named() map[string]string {
	const (
		noSystemd = "no systemd to talk to: TestDeployUnit has the unit read, TestSystemd has the daemon's side, and TestSIGHUP and TestRunbookPage send the signal"
		noDocker  = "no Docker daemon: TestDeployImage holds the Dockerfile against the program, TestCompose of deploy/check loads the compose file"
		noCluster = "no cluster: TestDeployChartCommand renders the chart with the same flags, TestDeployChart has helm lint it"
		whole     = "runs this very test, and others; TestNamedCommands asks make whether it could"
		network   = "asks servers on the network; TestNamedCommands asks make whether it could"
		signature = "needs a release that the workflow has signed: TestReleaseIsSigned of scripts holds the workflow against it"
		archive   = "needs an archive, which TestDeployArchive of internal/dist/cmd/dist packs and types this with"
		inBench   = "is what TestPerformancePage of bench does, with flags and in its own process"
		peers     = "is of a module of its own, which has a smoke test"
	)
	return map[string]string{
		"systemctl status notifyd":                  noSystemd,
		"systemctl reload notifyd":                  noSystemd,
		"systemctl status":                          noSystemd,
		"systemctl enable --now notifyd-idle.timer": noSystemd,
		"sudo systemctl daemon-reload && sudo systemctl enable --now notifyd": noSystemd,

		"docker build -f deploy/Dockerfile -t notifyd .":                                                             noDocker,
		"docker run --read-only --cap-drop ALL -v ./config.yaml:/etc/notifyd/config.yaml:ro -e DATABASE_URL notifyd": noDocker,
		"docker compose -f deploy/compose/compose.yaml up":                                                           noDocker,
		"docker build -f deploy/Dockerfile -t notifyd:0.1.0 .":                                                       noDocker,
		"docker run ... notifyd migrate":                                                                             noDocker,
		"docker build":                                                                                               noDocker,
		"docker compose up":                                                                                          noDocker,

		"make test":        whole,
		"make test-all":    whole,
		"make test-race":   whole,
		"make setup":       whole,
		"make setup-all":   whole,
		"make lint":        whole,
		"make chaos":       whole,
		"make picture":     "runs TestConsolePicture for five minutes",
		"make attack":      "runs tests of this package and others; TestRolesAreTested of scripts holds its list against the page",
		"make bench":       inBench,
		"make bench-peers": "takes half an hour; " + peers,
		"make dist":        "builds for four platforms; TestDist of internal/dist has the same done to a small program",
		"make vuln":        network,
		"make build":       "builds what every test of this package builds for itself; TestNamedCommands asks make whether it could",
		"make demo":        "TestQuickstart and TestDemo run the program that it starts",

		`cosign verify-blob --bundle SHA256SUMS.sigstore.json --certificate-oidc-issuer https://token.actions.githubusercontent.com --certificate-identity "https://github.com/$REPOSITORY/.github/workflows/release.yml@refs/tags/v0.1.0" SHA256SUMS`: signature,
		`gh attestation verify notifyd_*_linux_amd64.tar.gz --repo "$REPOSITORY"`: signature,

		"sha256sum --ignore-missing -c SHA256SUMS":                                                                     archive,
		"tar -xzf notifyd_*_linux_amd64.tar.gz":                                                                        archive,
		"sudo install notifyd_*/notifyd /usr/local/bin/":                                                               archive,
		"sudo install -m 644 -D -t /usr/local/share/man/man1 notifyd_*/man/man1/*.1":                                   archive,
		"sudo install -m 644 -D notifyd_*/completions/notifyd.bash /usr/share/bash-completion/completions/notifyd":     archive,
		"sudo install -m 644 notifyd_*/systemd/notifyd.sysusers /etc/sysusers.d/notifyd.conf && sudo systemd-sysusers": archive,
		"sudo install -m 644 notifyd_*/systemd/notifyd.service /etc/systemd/system/":                                   archive,

		"helm install notifyd deploy/helm/notifyd --set image.repository=registry.example.com/notifyd --set image.tag=0.1.0 --set database.existingSecret=notifyd-db --set migrate.existingSecret=notifyd-owner -f my-values.yaml": noCluster,

		"ssh -L 9470:127.0.0.1:9470 host":      "there is no other machine to log in at",
		"go tool pprof":                        "reads by hand what TestBenchForPeople has written",
		"go run ./cmd/bench":                   inBench,
		"go run ./cmd/bench drain":             inBench,
		"go run ./cmd/bench variants":          inBench,
		"go test -race":                        "is how this test was started",
		"go test -bench . ./handlers/rabbitmq": "takes minutes of the broker; TestPerformancePage drains into one",
		"go test -run '^$' -bench Batch -benchtime 3x ./handlers/webhook":          "takes a minute of both cores; TestBatchSuite delivers to such a receiver",
		"cd cmd/bench/peers && go run . --events 50000 --rounds 1":                 peers,
		"cd cmd/bench/peers && golangci-lint run --config ../../../.golangci.yaml": "is of a module of its own; make lint runs this program",
		"go test ./...":            whole,
		"go test -short":           whole,
		"go test .":                peers,
		"go mod tidy":              "changes files; make lint has it look whether it would",
		"helm template":            noCluster,
		"kubectl --dry-run=client": "is what TestDeployRoles adds to the page's commands",
		"helm lint":                noCluster,
	}
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

// TestNamedCommands: what no test runs is on a page, and make knows its target.
func TestNamedCommands(t *testing.T) {
	t.Parallel()
	met := make(map[string]bool)
	for _, page := range docPages(t) {
		for _, st := range steps(testenv.ReadFile(t, page)) {
			met[st.line()] = true
		}
	}
	for line, why := range named() {
		if !met[line] {
			t.Errorf("no page has %q any more, of which it is said that it %s", line, why)
		}
		if target, isMake := strings.CutPrefix(line, "make "); isMake {
			if out, err := exec.CommandContext(t.Context(), "make", "-n", "-C", root, target).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
	}
}

func TestSteps(t *testing.T) {
	t.Parallel()
	const page = "# One\nSay `notifyd run`, `x y`, `make test`.\n```\nnotifyd a \\\n  -b # why\n\necho |\n  cat\n```\n## Two\n" +
		"```console\nout\n$ notifyd c\nout\n```\n```sql\nSELECT 1;\n```\n```sh\ncat > f <<'EOF'\na\n\nb\nEOF\nls\n```\n"
	want := []step{
		{"One", "inline", "notifyd run"},
		{"One", "inline", "make test"},
		{"One", "sh", "notifyd a \\\n  -b # why"},
		{"One", "sh", "echo |\n  cat"},
		{"Two", "sh", "notifyd c"},
		{"Two", "sql", "SELECT 1;\n"},
		{"Two", "sh", "cat > f <<'EOF'\na\n\nb\nEOF"},
		{"Two", "sh", "ls"},
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
