package wire

import "github.com/notifyd/notifyd/delivery"

// Payload returns the payload of an event and its content type, of which one recurs for all events of a
// type. An event has one of the first two columns: payload as text, or payload_bytes in binary format.
func (n *Names) Payload(text, bytes, contentType []byte) (payload []byte, kind string) {
	payload, kind = text, delivery.ContentTypeJSON
	if bytes != nil {
		payload, kind = bytes, delivery.ContentTypeBytes
	}
	if contentType != nil {
		kind = n.Intern(contentType)
	}
	return payload, kind
}
