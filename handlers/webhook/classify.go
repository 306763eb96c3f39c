package webhook

import (
	"net/http"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
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

// observation holds the facts about a request that has ended.
type observation struct {
	at       stage
	code     int  // the status, 0 without an answer
	dynamic  bool // the event chose the host
	constant bool // the URL is the same for every event
	proxy    bool // the proxy failed or refused
	shut     bool // an earlier answer asked to leave the host alone
	batch    bool // the answer is about a whole batch
}

// classify returns the party at fault. No other function decides this.
func classify(o observation) outcome.Class {
	switch {
	case o.at == stageDraft:
		return outcome.Permanent
	case o.proxy && o.code == http.StatusProxyAuthRequired:
		return outcome.Unauthorized
	case o.proxy:
		return outcome.Unavailable // the proxy is the destination's, whatever host an event names
	case o.at == stageBlocked && o.dynamic:
		return outcome.Permanent
	}

	class := outcome.Unavailable
	switch {
	case o.at == stageAnswer:
		class = o.classOfStatus()
	case o.at == stageTurn && !o.shut:
		class = outcome.Throttled // by our own limits
	}

	if !o.dynamic {
		return class
	}

	// The refusals of one of many hosts prove nothing about the others, whose events must not wait.
	switch {
	case o.code == http.StatusGone:
		return outcome.Permanent // this host wants no further requests
	case class == outcome.Permanent:
		return outcome.Permanent
	default:
		return outcome.Retry
	}
}

func (o observation) classOfStatus() outcome.Class {
	if o.batch && o.code == http.StatusUnsupportedMediaType {
		return outcome.Unavailable // the form of the request is at fault, and no event
	}
	return outcome.OfStatus(o.code, !o.constant)
}

// isDelivered reports whether a status is a success.
func isDelivered(code int) bool { return code/100 == 2 }
