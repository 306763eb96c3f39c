package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// link remembers why connections failed. It implements kgo.HookBrokerConnect.
type link struct {
	configured []string // addresses

	mu  sync.Mutex
	err error // of the last connection to a configured address
	// advertised has the brokers that cannot be reached at the addresses that they advertise.
	advertised map[int32]*advertisedError
}

func newLink(cfg Config) *link {
	return &link{configured: cfg.brokers(), advertised: make(map[int32]*advertisedError)}
}

// advertisedError is the failure of a connection to a broker at an address that no one has configured here: the cluster
// itself names it.
type advertisedError struct {
	addr string
	error
}

const checkAdvertised = "correct advertised.listeners of the broker, or make its address known and open to this machine"

// Error names the setting of the broker.
func (e *advertisedError) Error() string {
	fault := "which does not answer"
	switch {
	case errors.Is(e.error, syscall.ECONNREFUSED):
		fault = "where nothing listens"
	case is[*net.DNSError](e.error):
		fault = "a name that is not known here"
	}
	return fmt.Sprintf("the broker advertises %s (advertised.listeners), %s: %v", e.addr, fault, e.error)
}

// Unwrap returns the failure.
func (e *advertisedError) Unwrap() error { return e.error }

// OnBrokerConnect is called after each attempt to connect and to authenticate.
func (l *link) OnBrokerConnect(broker kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	addr := net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port)))
	isSeed := broker.NodeID < 0
	dial, isDial := errors.AsType[*net.OpError](err)

	isAdvertised := isDial && dial.Op == "dial" && !isSeed
	if !isAdvertised || slices.Contains(l.configured, addr) {
		delete(l.advertised, broker.NodeID)
		l.err = err
		return
	}

	l.advertised[broker.NodeID] = &advertisedError{addr, dial}
}

// explain adds why connections fail: the last one to a configured address, or one to an address that a broker advertises.
func (l *link) explain(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil && !errors.Is(err, l.err) {
		return fmt.Errorf("%w: %w", err, l.err)
	}
	if l.err != nil || len(l.advertised) == 0 {
		return err
	}

	first := l.advertised[slices.Min(slices.Collect(maps.Keys(l.advertised)))]
	if is[*net.OpError](err) {
		return first // the failure is the same, without the address as an advertised one
	}
	return fmt.Errorf("%w: %w", err, first)
}

const (
	// leadersWithin bounds the connections to leaders, and maxLeaders their number.
	leadersWithin = 5 * time.Second
	maxLeaders    = 32
)

// checkLeaders connects to the brokers to which records will go: the leaders of the partitions, or all brokers where topics
// are made of events. A client uses the addresses that brokers advertise, whatever address it began with.
func checkLeaders(ctx context.Context, client *kgo.Client, of *kmsg.MetadataResponse, isFixed bool) error {
	leads := make(map[int32]bool)
	for i := range of.Topics {
		for _, p := range of.Topics[i].Partitions {
			leads[p.Leader] = true
		}
	}

	isOther := func(b kmsg.MetadataResponseBroker) bool { return isFixed && !leads[b.NodeID] }
	brokers := slices.DeleteFunc(slices.Clone(of.Brokers), isOther)
	brokers = brokers[:min(len(brokers), maxLeaders)]

	ctx, cancel := context.WithTimeoutCause(ctx, leadersWithin, fmt.Errorf("no answer within %v", leadersWithin))
	defer cancel()

	errs := make([]error, len(brokers))
	var dialing sync.WaitGroup
	for i, b := range brokers {
		dialing.Go(func() {
			_, errs[i] = client.Broker(int(b.NodeID)).Request(ctx, kmsg.NewPtrApiVersionsRequest())
		})
	}
	dialing.Wait()

	for i, err := range errs {
		switch {
		case err == nil:
		case ctx.Err() != nil:
			addr := net.JoinHostPort(brokers[i].Host, strconv.Itoa(int(brokers[i].Port)))
			return &advertisedError{addr, context.Cause(ctx)}
		default:
			return err
		}
	}

	return nil
}
