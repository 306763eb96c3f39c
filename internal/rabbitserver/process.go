package rabbitserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// readyEvery is how often a starting node is tried; it needs seconds.
	readyEvery = 100 * time.Millisecond
	// readyWithin is for a start on a busy machine that has messages to recover.
	readyWithin = 2 * time.Minute
	// answerWithin bounds one such try.
	answerWithin = 2 * time.Second
	// ctlWait is for what a program of ours may still have to say when its
	// context is done.
	ctlWait = 2 * time.Second
	// tailBytes of the log go into an error: Erlang is wordy, and the reason
	// comes first.
	tailBytes = 8192
)

var (
	errPortTaken = errors.New("a port is in use")
	errNotReady  = fmt.Errorf("no answer within %s", readyWithin)
)

// process is one run of a program.
type process struct {
	cmd  *exec.Cmd
	pid  int
	done chan struct{} // closed when it has ended and been waited for
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to RabbitMQ: %w", sig, err)
	}
	return nil
}

// kill ends p; a nil process is over already.
func (p *process) kill() error {
	if p == nil {
		return nil
	}
	if err := p.signal(sigKill); err != nil {
		return err
	}
	<-p.done // SIGKILL cannot be refused, so this is short
	return nil
}

// start runs epmd and the node and waits until it takes connections. On an
// error nothing runs.
func (s *Server) start(ctx context.Context) error {
	log, from, err := s.openLog()
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // nothing was written through this handle
	if s.epmd, err = s.launch(ctx, log, s.programs.epmd, "-port", strconv.Itoa(s.ports.epmd), "-address", "127.0.0.1"); err != nil {
		return err
	}
	if s.node, err = s.launch(ctx, log, s.programs.server); err != nil {
		return errors.Join(err, s.kill(s.helpers()))
	}
	s.dog.watch(s.node.pid, s.epmd.pid)
	err = s.ready(ctx)
	if err == nil {
		return nil
	}
	err = errors.Join(err, s.kill(s.helpers()))
	tail := s.logTail(from)
	if strings.Contains(tail, "eaddrinuse") || strings.Contains(tail, "Address already in use") {
		err = errors.Join(errPortTaken, err)
	}
	return fmt.Errorf("start RabbitMQ on port %d: %w; its log ends with:\n%s", s.ports.amqp, err, tail)
}

func (s *Server) openLog() (log *os.File, size int64, err error) {
	log, err = os.OpenFile(s.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the log of RabbitMQ: %w", err)
	}
	if size, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("open the log of RabbitMQ: %w", err), log.Close())
	}
	return log, size, nil
}

// launch starts a program that lives until somebody ends it.
func (s *Server) launch(ctx context.Context, log *os.File, program string, args ...string) (*process, error) {
	cmd := s.command(context.WithoutCancel(ctx), program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start RabbitMQ: %w", err)
	}
	p := &process{cmd: cmd, pid: cmd.Process.Pid, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		// How it ended is in its log.
		_ = cmd.Wait()
	}()
	return p, nil
}

// command prepares a program of RabbitMQ for this node.
func (s *Server) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = s.account.procAttr()
	cmd.Dir = s.dir
	cmd.WaitDelay = ctlWait
	cmd.Env = s.environment(os.Environ())
	return cmd
}

// environment makes every program keep to this node, whatever node a
// developer's own environment names.
func (s *Server) environment(environ []string) []string {
	kept := make([]string, 0, len(environ)+20)
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "RABBITMQ_") && !strings.HasPrefix(kv, "ERL_") && !strings.HasPrefix(kv, "HOME=") {
			kept = append(kept, kv)
		}
	}
	const onLoopback = "-kernel inet_dist_use_interface {127,0,0,1}"
	return append(kept,
		"HOME="+s.dir, // of the cookie
		"RABBITMQ_NODENAME="+s.name(),
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT="+strconv.Itoa(s.ports.amqp),
		"RABBITMQ_DIST_PORT="+strconv.Itoa(s.ports.dist),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+onLoopback,
		"RABBITMQ_CTL_ERL_ARGS="+onLoopback,
		"RABBITMQ_MNESIA_BASE="+filepath.Join(s.dir, "data"),
		"RABBITMQ_LOG_BASE="+filepath.Join(s.dir, "log"),
		"RABBITMQ_LOGS=-", // standard output
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(s.dir, "plugins"),
		"RABBITMQ_PID_FILE="+filepath.Join(s.dir, "pid"),
		"RABBITMQ_CONFIG_FILE="+filepath.Join(s.dir, "rabbit"),
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"ERL_CRASH_DUMP_SECONDS=0", // none
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_EPMD_PORT="+strconv.Itoa(s.ports.epmd),
		// Makes the start script become the node instead of being its parent, so
		// that a signal to the one is a signal to the other. Nothing else asks
		// for it: systemd itself is recognised by NOTIFY_SOCKET.
		"RUNNING_UNDER_SYSTEMD=true",
		"NOTIFY_SOCKET=",
	)
}

// ready waits for the first connection to the node just launched.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, errNotReady)
	defer cancel()
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-s.epmd.done:
			return errors.New("epmd exited")
		case <-s.node.done:
			return errors.New("the node exited")
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		case <-tick.C:
			if last = s.ask(); last == nil {
				return nil
			}
		}
	}
}

// ask connects once. It accepts only our own node: another one may sit on a
// port that ours did not get.
func (s *Server) ask() error {
	conn, err := amqp.DialConfig(s.URL(""), amqp.Config{Dial: amqp.DefaultDial(answerWithin)})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the answer counts, not the farewell
	name, _, _ := strings.Cut(s.name(), "@")
	if got, _ := conn.Properties["cluster_name"].(string); !strings.HasPrefix(got, name+"@") {
		return fmt.Errorf("another node, %q, has the port", got)
	}
	return nil
}

// logTail returns the end of what was logged since the log had the size from.
func (s *Server) logTail(from int64) string {
	b, err := os.ReadFile(s.LogFile())
	if err != nil {
		return err.Error()
	}
	if from < int64(len(b)) {
		b = b[from:]
	}
	b = bytes.TrimSpace(b)
	if len(b) > tailBytes {
		b = b[len(b)-tailBytes:]
	}
	return string(b)
}
