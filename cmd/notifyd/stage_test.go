//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// installed puts a program notifyd into dir, which is this one.
func installed(t *testing.T, dir string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// With the race detector a program waits for a second before it exits.
	script := fmt.Sprintf("#!/bin/sh\nGORACE=atexit_sleep_ms=0 %s=1 exec '%s' \"$@\"\n", envSelf, self)
	if err := os.WriteFile(filepath.Join(dir, "notifyd"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
}

// stage is where the steps of a page are run: a shell in a directory of its own,
// with notifyd on the path, and with a database.
type stage struct {
	*shell

	dir, url string
	address  string            // for admin.listen
	own      *strings.Replacer // exchanges addresses and places of the pages for those of the stage
	blocks   int
	relays   bool // one has been started
}

// newStage opens one. pairs are further texts of the page, and what is there in their place.
func newStage(t *testing.T, url string, pairs ...string) *stage {
	t.Helper()
	bin, err := pgserver.Find(t.Context()) // whose psql it is
	testenv.Need(t, "postgres", err)
	s := &stage{dir: t.TempDir(), url: url, address: "127.0.0.1:" + strconv.Itoa(testenv.FreePort(t))}
	installed(t, filepath.Join(s.dir, "bin"))
	s.own = strings.NewReplacer(append(pairs, "127.0.0.1:9470", s.address, "/etc/notifyd", s.dir+"/etc/notifyd", "sudo ", "")...)
	s.shell = openShell(t, s.dir, "DATABASE_URL="+url, "PATH="+filepath.Join(s.dir, "bin")+":"+os.Getenv("PATH")+":"+bin)
	return s
}

// write makes a file in the directory of the stage.
func (s *stage) write(name, text string) {
	s.Helper()
	testenv.WriteFile(s, filepath.Join(s.dir, name), text)
}

// act says how a step is run that is not simply to end with 0.
type act struct {
	before func()               // brings about what the page tells of
	as     string               // is typed in its place; %s is the command
	code   int                  // the exit code
	says   string               // matches what is printed, where the page does not show it
	shown  string               // what the page shows; follow sets it
	run    func(s step)         // runs the step, in place of the shell
	after  func(printed string) // looks what came of it
}

// programs are those that a page may have run.
func programs() []string {
	return []string{"cat", "cd", "curl", "echo", "export", "install", "kill", "kubectl", "notifyd", "printf", "psql", "sed", "sha256sum", "systemd-run", "tar"}
}

// do runs one step.
func (s *stage) do(st step, a act) {
	s.Helper()
	printed := ""
	a.shown = s.own.Replace(st.shown)
	if a.before != nil {
		a.before()
	}
	switch {
	case a.run != nil:
		a.run(st)
	case st.language == "sql":
		printed = s.psql(st.text, a)
	default:
		printed = s.command(st, a)
	}
	if a.after != nil {
		a.after(printed)
	}
}

// command types a command.
func (s *stage) command(st step, a act) (printed string) {
	s.Helper()
	text := s.own.Replace(st.text)
	if program, _, _ := strings.Cut(strings.TrimPrefix(text, "bin/"), " "); !slices.Contains(programs(), program) {
		s.Fatalf("no test may run %s: give it an act of its own, or add a rule to untested() with the reason", text)
	}
	if a.as != "" {
		line := s.own.Replace(st.line())
		text = strings.ReplaceAll(a.as, "%s", line)
	}
	return s.types("{ "+text+"\n} </dev/null", a, again(st.text))
}

// again is for how long a step may be run again: not at all, if it changes anything.
func again(text string) time.Duration {
	if looks.MatchString(text) {
		return typingPatience
	}

	return 0
}

// looks recognises a step that changes nothing.
var looks = regexp.MustCompile(`^(bin/)?notifyd (check-config|doctor|healthcheck|plan|status|(capture|dlq|events|positions|replay) (list|show))\b|^curl\b|^SELECT\b|^(cat|grep) [^>]*$`)

// types has the shell run a command, which ends with a code and prints what the page shows.
// One that only looks may be typed again: a server that has much to do is late, and
// shows a moment later what it should.
func (p *shell) types(text string, a act, again time.Duration) (printed string) {
	p.Helper()
	says := regexp.MustCompile(a.says)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()

	for deadline := time.Now().Add(again); ; <-tick.C {
		code, printed := p.run(text)
		isSaid := says.MatchString(printed) && (a.shown == "" || alike(a.shown, printed))
		if code == strconv.Itoa(a.code) && isSaid {
			return printed
		}
		if !time.Now().Before(deadline) {
			p.Fatalf("%s\nends with %s, and prints\n%s\nwant code %d, %q and\n%s", text, code, printed, a.code, a.says, a.shown)
		}
	}
}

// psql runs statements, each to its end, and returns the tables that are printed.
func (s *stage) psql(text string, a act) (printed string) {
	s.Helper()
	s.blocks++
	name := fmt.Sprintf("block%d.sql", s.blocks)
	s.write(name, text)
	return s.types(`psql -X -q -v ON_ERROR_STOP=1 -P footer=off -f `+name+` "$DATABASE_URL"`, a, again(text))
}

// follow runs the steps of a page in their order, each of them: a command by the shell,
// SQL by psql. acts are for those that need more, by their line; "sql 1" and so on
// are those for the blocks of SQL, "yaml 1" for configurations. Other blocks are those of TestDocsBlocks.
func (s *stage) follow(page string, acts map[string]act) {
	s.Helper()
	s.followAll(steps(testenv.ReadFile(s.T, root+page)), acts)
}

// followAll is follow for some steps of a page.
func (s *stage) followAll(list []step, acts map[string]act) {
	s.Helper()
	var met []string
	blocks := make(map[string]int)
	for _, st := range list {
		line := st.line()
		switch {
		case st.language == "sql", st.language == "yaml":
			blocks[st.language]++
			line = fmt.Sprintf("%s %d", st.language, blocks[st.language])
			if st.language == "yaml" && acts[line].run == nil {
				continue
			}
		case st.language != "sh" || isUntested(line):
			continue
		}
		met = append(met, line)
		s.do(st, acts[line])
	}
	for line := range acts {
		if !slices.Contains(met, line) {
			s.Errorf("the page does not have %q any more", line)
		}
	}
}

// config returns the last configuration of a page, with an address for commands.
func (s *stage) config(page string) string {
	s.Helper()

	return s.own.Replace(withAdmin(lastBlock(s.T, page, "yaml")))
}

// withAdmin adds admin.listen to a configuration without one.
func withAdmin(config string) string {
	if strings.Contains(config, "\nadmin:") {
		return config
	}

	return config + "admin: {listen: 127.0.0.1:9470}\n"
}

// serve runs a relay with a configuration of the page, in place of the one that runs.
func (s *stage) serve(st step) {
	s.Helper()
	s.launch(st)
	s.ready()
}

// launch is serve for an outbox without tables: it waits for nothing.
func (s *stage) launch(st step) {
	s.Helper()
	if s.relays {
		s.stop()
	}
	s.write("notifyd.yaml", s.own.Replace(withAdmin(st.text)))
	s.background()
}

// relay starts notifyd run in the background, and waits until it delivers.
func (s *stage) relay(config string) {
	s.Helper()
	s.write("notifyd.yaml", s.own.Replace(config))
	s.start()
}

// start is relay with the configuration that is there.
func (s *stage) start() {
	s.Helper()
	s.background()
	s.ready()
}

func (s *stage) background() {
	s.Helper()
	s.relays = true
	s.do(step{text: "notifyd run", language: "sh"}, act{as: "%s >events.log 2>notifyd.log & relay=$!"})
}

// ready waits until the relay that was started says that it is.
func (s *stage) ready() {
	s.Helper()
	s.until("notifyd healthcheck")
}

// until types a command again and again until it ends well.
func (s *stage) until(command string) {
	s.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(typingPatience); ; <-tick.C {
		is, printed := s.run("{ " + command + "\n} </dev/null")
		if is == "0" {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s ends with %s:\n%s\n%s", command, is, printed, testenv.ReadFile(s.T, filepath.Join(s.dir, "notifyd.log")))
		}
	}
}

// stop ends what relay has started, which has to end well.
func (s *stage) stop() {
	s.Helper()
	s.relays = false
	if code, printed := s.run("kill $relay; wait $relay"); code != "0" {
		s.Errorf("notifyd run ends with %s: %s\n%s", code, printed, testenv.ReadFile(s.T, filepath.Join(s.dir, "notifyd.log")))
	}
}
