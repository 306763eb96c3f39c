package doctor

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// pooler behaves like PgBouncer in transaction mode: a client has a session of
// the server from the first message of a transaction to its end. The process ids
// that clients get are invented.
type pooler struct {
	testing.TB
	url      string
	listener net.Listener
	done     sync.WaitGroup

	mu   sync.Mutex
	idle []*pgconn.HijackedConn // the last one is used next
	all  []net.Conn
}

// startPooler returns a pooler for the database of the URL; the end of the test closes it.
func startPooler(tb testing.TB, url string) *pooler {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &pooler{TB: tb, url: url, listener: listener}
	ctx := context.WithoutCancel(tb.Context())
	p.done.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.keep(conn)
			p.done.Go(func() { p.serve(ctx, conn) })
		}
	})
	tb.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		for _, c := range p.all {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.done.Wait()
	})
	return p
}

func (p *pooler) keep(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, c)
}

func (p *pooler) take(ctx context.Context) (*pgconn.HijackedConn, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		server := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return server, nil
	}
	p.mu.Unlock()
	conn, err := pgconn.Connect(ctx, p.url)
	if err != nil {
		return nil, err
	}
	server, err := conn.Hijack()
	if err == nil {
		p.keep(server.Conn)
	}
	return server, err
}

func (p *pooler) giveBack(server *pgconn.HijackedConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, server)
}

// serve serves one client until it disconnects.
func (p *pooler) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close() //nolint:errcheck // the client is gone
	client := pgproto3.NewBackend(conn, conn)
	if welcome(client) != nil {
		return
	}
	var server *pgconn.HijackedConn
	defer func() {
		if server != nil {
			_ = server.Conn.Close() // in a transaction that stays open
		}
	}()
	for {
		message, err := client.Receive()
		if _, bye := message.(*pgproto3.Terminate); err != nil || bye {
			return
		}
		if server == nil {
			if server, err = p.take(ctx); err != nil {
				return
			}
		}
		server.Frontend.Send(message)
		switch message.(type) {
		case *pgproto3.Sync, *pgproto3.Query:
		default:
			continue
		}
		status, err := relay(server, client)
		if err != nil {
			return
		}
		if status == 'I' {
			p.giveBack(server)
			server = nil
		}
	}
}

// welcome admits every client.
func welcome(client *pgproto3.Backend) error {
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return err
	}
	client.Send(&pgproto3.AuthenticationOk{})
	for name, value := range map[string]string{"server_version": "15.0", "client_encoding": "UTF8", "standard_conforming_strings": "on"} {
		client.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	client.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	return client.Flush()
}

// relay passes on the answers until the server is ready again. Messages that
// answer no request are lost.
func relay(server *pgconn.HijackedConn, client *pgproto3.Backend) (status byte, err error) {
	if err := server.Frontend.Flush(); err != nil {
		return 0, err
	}
	for {
		answer, err := server.Frontend.Receive()
		if err != nil {
			return 0, err
		}
		if _, unasked := answer.(*pgproto3.NotificationResponse); unasked {
			continue
		}
		client.Send(answer)
		if ready, ok := answer.(*pgproto3.ReadyForQuery); ok {
			return ready.TxStatus, errors.Join(client.Flush())
		}
	}
}
