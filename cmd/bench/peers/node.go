package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// nodeStop is how long a program may take to stop; it is killed then.
const nodeStop = 30 * time.Second

// script is a program in node/ and its settings.
type script struct {
	file     string
	url      string // of the database
	settings any    // become JSON
	commit   commit
}

func (n *node) command(ctx context.Context, s script, args ...string) (*exec.Cmd, error) {
	settings, err := json.Marshal(s.settings)
	if err != nil {
		return nil, err
	}
	database := s.url
	if s.commit != commitDefault {
		database, err = withOption(database, "-c synchronous_commit="+string(s.commit))
		if err != nil {
			return nil, err
		}
	}
	cmd := exec.CommandContext(ctx, n.program, append([]string{filepath.Join(n.dir, s.file)}, args...)...)
	cmd.Dir = n.dir
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database, "PEER_SETTINGS="+string(settings))
	return cmd, nil
}

// withOption adds an option to the URL, as PGOPTIONS does for psql.
func withOption(database, option string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", err
	}
	q := u.Query()
	q.Set("options", strings.TrimSpace(q.Get("options")+" "+option))
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String(), nil
}

// migrate runs a program to its end and returns its output.
func (n *node) migrate(ctx context.Context, s script) ([]byte, error) {
	cmd, err := n.command(ctx, s, "migrate")
	if err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s migrate: %w: %s", s.file, err, lastLines(stderr.String()))
	}
	return out, nil
}

// launch starts the worker programs, and returns once they are loaded.
func (n *node) launch(ctx context.Context, s script, processes int, c calls) (worker, error) {
	var all nodeWorker
	for range processes {
		p, err := n.launchOne(ctx, s, c)
		if err == nil {
			all = append(all, p)
			err = p.await(ctx, "loaded")
		}
		if err != nil {
			return nil, errors.Join(err, all.stop())
		}
	}
	return all, nil
}

func (n *node) launchOne(ctx context.Context, s script, c calls) (*nodeProcess, error) {
	cmd, err := n.command(context.WithoutCancel(ctx), s, "work")
	if err != nil {
		return nil, err
	}
	p := &nodeProcess{name: s.file, cmd: cmd, calls: c, said: make(chan string, 4), ended: make(chan struct{})}
	cmd.Stderr = &p.stderr
	p.stdin, err = cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go p.run(out)
	return p, nil
}

// nodeWorker runs a peer's worker in separate processes.
type nodeWorker []*nodeProcess

func (w nodeWorker) start(ctx context.Context) error {
	for _, p := range w {
		if _, err := io.WriteString(p.stdin, "start\n"); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	for _, p := range w {
		if err := p.await(ctx, "ready"); err != nil {
			return err
		}
	}
	return nil
}

func (w nodeWorker) stop() (err error) {
	for _, p := range w {
		err = errors.Join(err, p.stdin.Close())
	}
	for _, p := range w {
		err = errors.Join(err, p.wait())
	}
	return err
}

// nodeProcess is one process of a worker. node/report.mjs describes its standard output.
type nodeProcess struct {
	name   string
	cmd    *exec.Cmd
	calls  calls
	stdin  io.WriteCloser
	stderr bytes.Buffer // complete once it has ended
	said   chan string
	ended  chan struct{} // closed when it has
	err    error         // why, once it has
}

func (p *nodeProcess) run(out io.Reader) {
	defer close(p.ended)
	lines := bufio.NewScanner(out)
	var err error
	for err == nil && lines.Scan() {
		err = p.line(lines.Text())
	}
	err = errors.Join(err, lines.Err())
	if waitErr := p.cmd.Wait(); waitErr != nil || err != nil {
		p.err = fmt.Errorf("%s: %w: %s", p.name, errors.Join(err, waitErr), lastLines(p.stderr.String()))
		p.calls.failed(p.err)
	}
}

func (p *nodeProcess) line(line string) error {
	kind, rest, _ := strings.Cut(line, " ")
	switch kind {
	case "n":
		n, err := strconv.Atoi(rest)
		for range n {
			p.calls.handled(0, time.Time{})
		}
		return err
	case "e":
		seq, at, _ := strings.Cut(rest, " ")
		n, err := strconv.Atoi(seq)
		us, atErr := strconv.ParseInt(at, 10, 64)
		if err := errors.Join(err, atErr); err != nil {
			return err
		}
		p.calls.handled(n, time.UnixMicro(us))
		return nil
	default:
		select {
		case p.said <- line:
			return nil
		default:
			return fmt.Errorf("it said %q", line)
		}
	}
}

// await waits until the process prints word.
func (p *nodeProcess) await(ctx context.Context, word string) error {
	select {
	case said := <-p.said:
		if said != word {
			return fmt.Errorf("%s said %q, not %q", p.name, said, word)
		}
		return nil
	case <-p.ended:
		return errors.Join(fmt.Errorf("%s ended before it was %s: %s", p.name, word, lastLines(p.stderr.String())), p.err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *nodeProcess) wait() error {
	kill := time.AfterFunc(nodeStop, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	<-p.ended
	return p.err
}
