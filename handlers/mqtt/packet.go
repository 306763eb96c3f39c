package mqtt

import (
	"bytes"
	"io"

	"github.com/eclipse/paho.golang/packets"
)

// readPacket reads a packet of a broker. A packet that is longer than announced, or not of MQTT, is errForeign.
func readPacket(r io.Reader) (*packets.ControlPacket, error) {
	header, length, err := readHeader(r)
	if err != nil {
		return nil, err
	}

	whole := make([]byte, len(header)+length)
	copy(whole, header)
	if _, err := io.ReadFull(r, whole[len(header):]); err != nil {
		return nil, err
	}

	if isOldConnack(whole) {
		return nil, errVersion
	}
	p, err := packets.ReadPacket(bytes.NewReader(whole))
	if err != nil {
		return nil, errForeign
	}
	return p, nil
}

// readHeader reads the type of a packet and the length of the rest. The library takes any length.
func readHeader(r io.Reader) (header []byte, length int, err error) {
	const most, more, digits, flags = 5, 0x80, 7, 0x0f // the type, and a number of four digits
	var next [1]byte
	for len(header) < most {
		if _, err := io.ReadFull(r, next[:]); err != nil {
			return nil, 0, err
		}
		header = append(header, next[0])

		place := len(header) - 2
		if place < 0 {
			if header[0]&flags != 0 { // only messages have flags, and nothing is subscribed to
				return nil, 0, errForeign
			}
			continue
		}
		length |= int(next[0]&^more) << (digits * place)
		if next[0]&more == 0 {
			if length > maxAnswer {
				return nil, 0, errForeign
			}
			return header, length, nil
		}
	}
	return nil, 0, errForeign
}

// isOldConnack reports whether a broker without MQTT 5 has refused the connection: its answer has no properties.
func isOldConnack(whole []byte) bool {
	const length = 4
	return len(whole) == length && whole[0]>>4 == packets.CONNACK
}
