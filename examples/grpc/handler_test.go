package main

import (
	"context"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/freeport"
)

// service is the server side. It answers a repeated call with ALREADY_EXISTS, without
// other effects.
type service struct {
	address string

	mu     sync.Mutex
	server *grpc.Server
	done   chan struct{}
	ids    []int64
	answer codes.Code // of the next call, if not OK
}

func (s *service) reserve(ctx context.Context, request *structpb.Struct) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if code := s.answer; code != codes.OK {
		s.answer = codes.OK
		return nil, status.Error(code, "as the test wants it")
	}
	if request.GetFields()["refuse"].GetBoolValue() {
		return nil, status.Error(codes.InvalidArgument, "no such order")
	}
	md, _ := metadata.FromIncomingContext(ctx)
	id, err := strconv.ParseInt(md.Get(idempotencyKey)[0], 10, 64)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "no idempotency key")
	}
	if slices.Contains(s.ids, id) {
		return nil, status.Error(codes.AlreadyExists, "seen before")
	}
	s.ids = append(s.ids, id)
	return &emptypb.Empty{}, nil
}

// description is the description that generated code would have.
func (s *service) description() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "warehouse.v1.Warehouse", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Reserve", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var request structpb.Struct
			if err := decode(&request); err != nil {
				return nil, err
			}
			return s.reserve(ctx, &request)
		}}},
	}
}

func (s *service) start(tb testing.TB) {
	tb.Helper()
	open := freeport.Listen
	if s.address != "" { // again, at the same address
		open = func(ctx context.Context) (net.Listener, error) { return freeport.Reopen(ctx, s.address) }
	}
	l, err := open(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	s.address = l.Addr().String()
	s.server, s.done = grpc.NewServer(), make(chan struct{})
	s.server.RegisterService(s.description(), s)
	go func(server *grpc.Server, done chan struct{}) {
		defer close(done)
		_ = server.Serve(l) // ends with Stop
	}(s.server, s.done)
}

func (s *service) stop(testing.TB) {
	s.server.Stop()
	<-s.done
}

// TestWarehouse runs the suite that every destination passes.
func TestWarehouse(t *testing.T) {
	t.Parallel()
	s := &service{}
	s.start(t)
	t.Cleanup(func() { s.stop(t) })
	proxy := handlertest.StartProxy(t, s.address)
	open := func(tb testing.TB) delivery.Handler {
		tb.Helper()
		conn, err := grpc.NewClient(proxy.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
		if err != nil {
			tb.Fatal(err)
		}
		return closing{warehouse{conn}, conn}
	}
	d := handlertest.Destination{
		Open: open,
		Received: func(testing.TB) []int64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return slices.Clone(s.ids)
		},
		Rejected: func(id int64) *delivery.Event {
			return &delivery.Event{ID: id, Type: "order.created", Payload: []byte(`{"refuse": true}`), Attempt: 1}
		},
		Network: proxy, Stop: s.stop, Start: s.start,
	}
	for code, class := range map[codes.Code]delivery.Class{
		codes.Unavailable: delivery.ClassDestination, codes.ResourceExhausted: delivery.ClassDestination,
		codes.Unauthenticated: delivery.ClassDestination, codes.Internal: delivery.ClassEvent, codes.NotFound: delivery.ClassEvent,
	} {
		d.Cases = append(d.Cases, handlertest.Case{
			Name: code.String(), Class: class, Permanent: code == codes.NotFound, Throttled: code == codes.ResourceExhausted,
			Provoke: func(tb testing.TB) error {
				tb.Helper()
				s.mu.Lock()
				s.answer = code
				s.mu.Unlock()
				h := open(tb)
				if c, ok := h.(io.Closer); ok {
					defer c.Close() //nolint:errcheck // only the answer matters
				}
				return h.Deliver(tb.Context(), &delivery.Event{ID: 1, Type: "order.created", Payload: []byte(`{}`), Attempt: 1})
			},
		})
	}
	handlertest.Run(t, d)
}

// closing closes the connection with the handler, as the suite expects it.
type closing struct {
	warehouse
	conn *grpc.ClientConn
}

// Close closes the connection, which may be closed already.
func (c closing) Close() error {
	if err := c.conn.Close(); err != nil && status.Code(err) != codes.Canceled {
		return err
	}
	return nil
}
