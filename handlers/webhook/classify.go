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

// statuses is the table of statuses that are not a success. They separate refusals of this event from refusals of
// every event. Own is the class where the URL is not the same for every event. Other statuses are unclear: a gateway, a
// proxy or a wrong deployment answers every event with them. See observation.classOfStatus.
func statuses() outcome.Table[int] {
	return outcome.Table[int]{
		{ // our credentials
			Codes: []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusMisdirectedRequest, http.StatusUpgradeRequired},
			Class: outcome.Unavailable,
		},
		{Codes: []int{http.StatusProxyAuthRequired}, Class: outcome.Unauthorized, Cure: "check user and password in proxy_url"},
		{Codes: []int{http.StatusTooManyRequests}, Class: outcome.Throttled},
		{ // our URL, our method
			Codes: []int{http.StatusNotFound, http.StatusMethodNotAllowed},
			Class: outcome.Unavailable, Own: outcome.Unclear,
		},
		{
			Codes: []int{http.StatusPaymentRequired},
			Class: outcome.Unavailable, Own: outcome.Unclear, Cure: "look at the account at the receiver: it wants payment",
		},
		{ // the receiver has read the event, and will not take it
			Codes: []int{http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity},
			Class: outcome.Permanent,
		},
		{ // cured by time, perhaps
			Codes: []int{http.StatusConflict, http.StatusLocked, http.StatusFailedDependency, http.StatusTooEarly},
			Class: outcome.Retry,
		},
		{Codes: []int{http.StatusRequestTimeout}, Class: outcome.UnclearRetry},
		{
			Codes: []int{
				http.StatusNotImplemented, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
				http.StatusHTTPVersionNotSupported, http.StatusInsufficientStorage, http.StatusNetworkAuthenticationRequired,
			},
			Class: outcome.Unavailable,
		},
		{ // of Cloudflare, for an origin that it cannot reach
			Codes: []int{520, 521, 522, 523, 524, 525, 526, 527, 528, 529, 530},
			Class: outcome.Unavailable,
		},
	}
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
	class, _ := statuses().Find(!o.constant, o.code)
	switch {
	case class != outcome.Unknown:
		return class
	case o.batch && o.code == http.StatusUnsupportedMediaType:
		return outcome.Unavailable // the form of the request is at fault, and no event
	case o.code < 400: // we follow no redirects, and speak no other protocol
		return outcome.Unavailable
	case o.code < 500:
		return outcome.Unclear // 400 among them: a gateway's answer to a wrong certificate, or a receiver's to this event
	default:
		return outcome.UnclearRetry // 500: the receiver tripped, perhaps over this event
	}
}

// isDelivered reports whether a status is a success.
func isDelivered(code int) bool { return code/100 == 2 }
