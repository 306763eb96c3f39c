package webhook

import (
	"net/http"

	"github.com/notifyd/notifyd/delivery"
)

// stage is how far a request had come when it failed.
type stage uint8

const (
	stageDraft   stage = iota // making the request out of the event
	stageBlocked              // the guard refused the address
	stageTurn                 // waiting for a turn: host_rate_limit, host_concurrency, Retry-After
	stageConnect              // looking up the name, TCP
	stageTLS                  // the TLS handshake
	stageSend                 // writing the request
	stageWait                 // the request is written
	stageAnswer               // there is a status
)

// class is the class of a failure.
type class uint8

const (
	delivered class = iota
	refused         // delivery.Permanent
	suspected       // tried again with backoff, or after the server's Retry-After; the attempt counts
	down            // delivery.Unavailable
	throttled       // delivery.Throttled
)

// observation holds the facts about a request that has ended.
type observation struct {
	at       stage
	code     int  // the status, 0 if there was none
	dynamic  bool // the event chose the host
	constant bool // the URL is the same for every event
	proxy    bool // the proxy failed or refused
	shut     bool // an earlier answer asked to leave the host alone
}

// classify decides who is at fault. Nothing else decides that.
func classify(o observation) class {
	switch {
	case o.at == stageDraft:
		return refused
	case o.proxy:
		return down // the proxy is the destination's, whatever host an event names
	case o.at == stageBlocked && o.dynamic:
		return refused
	}
	c := down
	switch {
	case o.code != 0:
		c = o.classOfStatus()
	case o.at == stageTurn && !o.shut:
		c = throttled // by our own limits
	}
	if o.dynamic && (c == down || c == throttled) {
		return suspected // one of many hosts is down: the events of the others must not wait
	}
	return c
}

// classOfStatus classifies a status: it separates refusals of this event from refusals
// of every event.
func (o observation) classOfStatus() class {
	code := o.code
	switch {
	case code >= 200 && code < 300:
		return delivered
	case code < 400: // we follow no redirects, and speak no other protocol
		return down
	}
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusMethodNotAllowed,
		http.StatusMisdirectedRequest, http.StatusUpgradeRequired:
		return down // our credentials, our method
	case http.StatusTooManyRequests:
		return throttled // our pace
	case http.StatusNotFound:
		if o.constant {
			return down // the URL is the same for every event, and leads nowhere
		}
		return refused
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusLocked, http.StatusFailedDependency, http.StatusTooEarly:
		return suspected // cured by time, perhaps
	case http.StatusNotImplemented, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
		http.StatusHTTPVersionNotSupported, http.StatusInsufficientStorage, http.StatusNetworkAuthenticationRequired:
		return down
	}
	switch {
	case code < 500:
		return refused // 410 Gone among them: the server wants no further requests
	case code >= 520 && code <= 530:
		return down // Cloudflare's statuses for an origin that it cannot reach
	default:
		return suspected // 500: the receiver tripped, perhaps over this event
	}
}

// mark gives err the mark of its class. wait is the pause that the server asked
// for, zero if none.
func (c class) mark(err *failure) error {
	switch {
	case c == refused:
		return delivery.Permanent(err)
	case c == down && err.code == http.StatusProxyAuthRequired:
		return delivery.Unauthorized(err) // a 401 may be about this one event
	case c == down:
		return delivery.Unavailable(err)
	case c == throttled:
		return delivery.Throttled(err.wait, err)
	case err.wait > 0:
		return delivery.RetryAfter(err.wait, err)
	default:
		return err
	}
}
