//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// typingPatience is for a shell on a busy machine, which may compile a program
// with nothing in its cache.
const typingPatience = 4 * time.Minute

// shell is what a page's blocks are typed into.
type shell struct {
	*testing.T

	keys   io.Writer
	screen *output
	typed  int
	ended  chan struct{}
}

// openShell starts a shell in dir. All that runs in it ends with the test.
func openShell(t *testing.T, dir string, env ...string) *shell {
	t.Helper()
	input, keys := io.Pipe()
	p := &shell{T: t, keys: keys, screen: newOutput(), ended: make(chan struct{})}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "bash") // its whole group is killed below
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, p.screen, p.screen
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // what it has printed says all
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // nothing of it may be left
		_ = keys.Close()
		<-p.ended
	})
	return p
}

// run types a block and returns what it printed and the exit code of its last command.
func (p *shell) run(block string) (exit, printed string) {
	p.Helper()
	p.typed++
	code, end := fmt.Sprintf("== block %d has ended with ", p.typed), fmt.Sprintf("\n== and that was block %d\n", p.typed)
	was := len(p.screen.text())
	if _, err := fmt.Fprintf(p.keys, "%s\nprintf '%s%%s%s' $?\n", strings.TrimSpace(block), code, strings.ReplaceAll(end, "\n", `\n`)); err != nil {
		p.Fatal(err)
	}
	p.screen.await(p.T, end)
	printed, rest, _ := strings.Cut(p.screen.text()[was:], code)
	exit, _, _ = strings.Cut(rest, end)
	return exit, printed
}

// quickstart is what the page is run with.
type quickstart struct {
	*testing.T

	first, second *shell
	console       string
	url           string
}

// make checks that make would do what the page relies on: building here would
// make another program than the one that is tested.
func (q *quickstart) make(targets ...string) {
	q.Helper()
	cmd := exec.CommandContext(q.Context(), "make", append([]string{"-n"}, targets...)...)
	cmd.Dir = root
	text, err := cmd.CombinedOutput()
	for _, want := range []string{"-o bin/with ./internal/lab/privateserver/pginstall/cmd/with\n", "\nbin/with -also " + envSpare + "=shop bin/notifyd demo --keep\n", "-o bin/notifyd ./cmd/notifyd"} {
		if err != nil || !strings.Contains(string(text), want) {
			q.Errorf("make %q: %v\n%s\nwant %s", targets, err, text, want)
		}
	}
}

// keep starts the demo that stays, and exports what it says in the second terminal.
func (q *quickstart) keep(block, shown string) {
	q.Helper()
	if _, err := io.WriteString(q.first.keys, block); err != nil {
		q.Fatal(err)
	}
	q.first.screen.await(q.T, "\n\n  export ")
	q.first.screen.await(q.T, " MAIL_PORT=") // which is written at once, to its end
	line := regexp.MustCompile(`(?m)^  export DATABASE_URL='(.*)' MAIL_PORT=\d+$`).FindStringSubmatch(q.first.screen.text())
	if line == nil {
		q.Fatalf("the demo does not say how to go on:\n%s", q.first.screen.text())
	}
	if q.url = line[1]; !alike(shown, line[0]) {
		q.Errorf("the demo says\n%s\nnot\n%s", line[0], shown)
	}
	if code, text := q.second.run(line[0]); code != "0" || text != "" {
		q.Fatalf("%s: %s", code, text)
	}
}

// run does what a block says; shown is the output of it that the page has.
func (q *quickstart) run(block, shown string) {
	q.Helper()
	switch {
	case block == "make demo\n":
		q.make("demo", "ARGS=--keep", "build")
	case strings.HasSuffix(block, " --keep\n"):
		q.keep(block, shown)
	default:
		q.second.types(block, act{shown: shown}, again(block))
	}
}

// looks opens the console.
func (q *quickstart) looks() {
	q.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	u, err := url.Parse(q.console)
	if err != nil {
		q.Fatal(err)
	}
	page := visitor{q.T, &http.Client{Transport: transport}, u.Scheme + "://" + u.Host}.awaits(u.Path, "warehouse")
	for _, text := range []string{"mail", "Dead letters", "Relays"} {
		if !strings.Contains(page, text) {
			q.Errorf("the console does not show %q:\n%s", text, page)
		}
	}
}

// newQuickstart opens both terminals in a directory that is as after "make build",
// and returns the page with ports of its own.
func newQuickstart(t *testing.T) (q *quickstart, page string) {
	t.Helper()
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	installed(t, filepath.Join(dir, "bin"))
	build := exec.CommandContext(t.Context(), "go", "build", "-C", here, "-o", filepath.Join(dir, "bin"), "./internal/lab/privateserver/pginstall/cmd/with")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	ports := make([]string, 2)
	for i := range ports {
		port, err := freeport.Pick(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = strconv.Itoa(port)
	}
	page = strings.NewReplacer("127.0.0.1:9470", "127.0.0.1:"+ports[0], "127.0.0.1:8080", "127.0.0.1:"+ports[1],
		"make demo ARGS=--keep\n", "bin/with -also "+envSpare+"=shop bin/notifyd demo --keep\n",
		"go build -o bin/ ./", "go build -C '"+here+"' -o '"+dir+"/bin/' ./").Replace(testenv.ReadFile(t, root+"docs/quickstart.md"))
	q = &quickstart{T: t, first: openShell(t, dir), second: openShell(t, dir, "PORT="+ports[1])}
	q.console = regexp.MustCompile(`<(http://127[^>]*)>`).FindStringSubmatch(page)[1]
	return q, page
}

// TestQuickstart types docs/quickstart.md, block by block, and compares what is
// printed. A block of text is the output of the one before it; one without a
// language is what the first terminal shows.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	testenv.Postgres(t) // or skip: the demo would install one
	for _, mode := range []string{"queue", "stream"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			if mode == "stream" {
				testenv.Long(t)
			}
			q, page := newQuickstart(t)
			if mode == "stream" {
				page = onStream(t, page)
			}
			q.runAll(page)
		})
	}
}

// onStream returns the page for a reader who makes the table a stream. The output is
// the same then, but for how the tables are made, and for "status": it has positions,
// and no row for a destination that is down.
func onStream(t *testing.T, page string) string {
	t.Helper()
	for _, c := range []struct{ was, is string }{
		{"demo --keep\n", "demo --mode stream --keep\n"},
		{"bin/notifyd migrate\n", "bin/notifyd migrate --mode stream | grep ' is at version'\n"},
		{"applied version 1: events and deliveries\n", ""},
		{", notify auto\n", ", notify auto, mode stream\n"},
		{"bin/notifyd status\n", "bin/notifyd status | sed -n '1,/^$/p;/^dead letters/,$p'\n"},
	} {
		if !strings.Contains(page, c.was) {
			t.Fatalf("the page has no %q", c.was)
		}
		page = strings.Replace(page, c.was, c.is, 1)
	}
	// A stream stores how far each destination has come, so each is named.
	const others = `(?m)^every other destination that it was routed to has received it, or passed it over \(expires_after, when\), by \S+ \S+$`
	if n := len(regexp.MustCompile(others).FindAllString(page, -1)); n != 2 {
		t.Fatalf("the page says %d times that the others have received an event", n)
	}
	page = regexp.MustCompile(others).ReplaceAllString(page, "warehouse: delivered")
	from, to := strings.Index(page, "database  shop at"), strings.Index(page, "dead letters:\n")
	if from < 0 || to < from {
		t.Fatal("the page does not show what status says")
	}
	return page[:from] + page[to:]
}

// runAll runs the page from its first block to its last.
func (q *quickstart) runAll(page string) {
	t := q.T
	t.Helper()
	blocks := append(fences(page), fence{language: "text"}) // so that each has one behind it
	demo, run := "", 0
	for i, b := range blocks {
		shown := ""
		if b.language == "sh" && blocks[i+1].language == "text" {
			shown = blocks[i+1].text
		}
		switch b.language {
		case "sh":
			if b.text == "make demo\n" {
				demo = shown
			}
			if strings.HasPrefix(b.text, "bin/notifyd doctor") {
				q.looks() // before all is stopped
			}
			q.run(strings.TrimPrefix(b.text, "make build\n"), shown)
			run++
		case "sql":
			execute(t, q.url, b.text)
		case "":
			q.first.screen.await(t, b.text)
		case "text": // compared above
		default:
			t.Errorf("nobody runs a block of %q:\n%s", b.language, b.text)
		}
	}
	if run < 15 {
		t.Errorf("%d blocks were run", run)
	}
	q.second.run("wait")
	// What the demo says, but for the figures.
	figures := func(s string) string { return regexp.MustCompile(`[\d.]+`).ReplaceAllString(s, "N") }
	if said := figures(settled(q.first.screen.text())); demo == "" || !strings.Contains(said, figures(settled(demo))) {
		t.Errorf("the demo does not say\n%s\nbut\n%s", demo, said)
	}
}
