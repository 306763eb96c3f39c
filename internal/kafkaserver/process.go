package kafkaserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/internal/watchdog"
)

const (
	// nodeID is that of the only node.
	nodeID = 1
	// readyEvery is how often a starting server is tried; it takes seconds.
	readyEvery = 50 * time.Millisecond
	// readyWithin is for a machine on which everything else runs at once.
	readyWithin = 2 * time.Minute
	// answerWithin bounds one such try.
	answerWithin = 2 * time.Second
)

var (
	errPortTaken = errors.New("a port is in use")
	errNotReady  = fmt.Errorf("no answer within %s", readyWithin)
	errStopped   = errors.New("the server is stopped and its data removed")
	errDown      = errors.New("the server is not running")
	errRunning   = errors.New("the server is already running")
)

// process is one run of the server.
type process struct {
	cmd  *exec.Cmd
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

// signal sends sig through the process handle, which is safe against a process
// id that belongs to somebody else by now.
func (p *process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to Kafka: %w", sig, err)
	}
	return nil
}

// flags of the JVM. The first compiler alone and the simplest collector start in
// half the time and use a third of the memory.
func (s *Server) flags() []string {
	if s.cfg.Tuned {
		return []string{"-Xms1g", "-Xmx1g"}
	}
	return []string{"-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
}

// start runs the server and waits until it answers. On an error no process is
// left.
func (s *Server) start(ctx context.Context) error {
	log, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of Kafka: %w", err)
	}
	defer log.Close() //nolint:errcheck // nothing was written through this handle
	args := append(s.flags(), "-cp", s.cfg.Programs.classPath(), "kafka.Kafka", s.propertiesFile())
	// ctx bounds the start, not the life of the server.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.cfg.Programs.Java, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.SysProcAttr = watchdog.OwnGroup()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start Kafka: %w", err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // why it ended is in its log
	}()
	s.proc = p
	s.dog.Watch(cmd.Process.Pid)
	if err = s.ready(ctx); err == nil {
		return nil
	}
	err = errors.Join(err, s.kill())
	text, readErr := os.ReadFile(s.LogFile())
	if bytes.Contains(text, []byte("Address already in use")) {
		err = errPortTaken
	}
	return fmt.Errorf("start Kafka: %w; its log ends with:\n%s", errors.Join(err, readErr), lastLines(text))
}

// ready waits until the process just launched takes part in its cluster.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, errNotReady)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Addr()), kgo.RequestRetries(0))
	if err != nil {
		return err
	}
	defer client.Close()
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-s.proc.done:
			return errors.New("the process has ended")
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		case <-tick.C:
			if last = s.ask(ctx, client); last == nil {
				return nil
			}
		}
	}
}

// ask looks whether the node takes part in the cluster that we have formatted:
// another server may sit on a port that ours did not get. A broker is listed once
// the controller lets it serve.
func (s *Server) ask(ctx context.Context, client *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := req.RequestWith(ctx, client)
	switch {
	case err != nil:
		return err
	case resp.ClusterID == nil || *resp.ClusterID != s.cluster:
		return errors.New("another cluster has the port")
	case len(resp.Brokers) != 1 || resp.Brokers[0].NodeID != nodeID:
		return errors.New("the broker does not serve yet")
	default:
		return nil
	}
}
