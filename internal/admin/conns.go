package admin

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxConns bounds the open connections. A program that opens more loses the connections that it has opened first: it
// neither uses up descriptors and memory, nor keeps others from being answered.
const maxConns = 256

// conns are the open connections of a server.
type conns struct {
	most int

	mu  sync.Mutex
	all map[net.Conn]client
}

// client is the other side of a connection.
type client struct {
	host  string
	since time.Time
	waits bool // for its first request, or for the next one
}

// note is the ConnState of a server. A connection above the bound replaces another one of the client that has
// most, the oldest that waits for a request, or else the oldest.
func (c *conns) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()

	switch state {
	case http.StateNew:
		if len(c.all) >= c.most {
			victim := c.victim()
			delete(c.all, victim)
			abort(victim)
		}

		host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		c.all[conn] = client{host, time.Now(), true}
	case http.StateActive, http.StateIdle:
		if known, ok := c.all[conn]; ok {
			known.waits = state == http.StateIdle
			c.all[conn] = known
		}
	case http.StateHijacked, http.StateClosed:
		delete(c.all, conn)
	}
}

// victim returns the connection that is closed for a new one.
func (c *conns) victim() (found net.Conn) {
	count := make(map[string]int)
	for _, one := range c.all {
		count[one.host]++
	}

	worse := func(a, b client) bool {
		if n, m := count[a.host], count[b.host]; n != m {
			return n > m
		}
		if a.waits != b.waits {
			return a.waits
		}
		return a.since.Before(b.since)
	}

	for conn, one := range c.all {
		if found == nil || worse(one, c.all[found]) {
			found = conn
		}
	}
	return found
}

// abort closes a connection at once: TLS would wait until the other side has read the goodbye.
func abort(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}
