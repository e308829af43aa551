// Package codec is the one encoding of what servers write and send: entries of the log, records of the ledger and of
// its snapshots, outcomes and answers. It is CBOR (RFC 8949), deterministic: a value always has the same bytes. A
// struct is a map by the names of its JSON tags, without the fields that may be omitted.
package codec

import "github.com/fxamacker/cbor/v2"

var encoding, strict, lenient = modes()

func modes() (encoding cbor.EncMode, strict, lenient cbor.DecMode) {
	options := cbor.CoreDetEncOptions()
	options.Time = cbor.TimeRFC3339NanoUTC
	encoding, err := options.EncMode()
	if err != nil {
		panic(err)
	}
	decoder := func(extra cbor.ExtraDecErrorCond) cbor.DecMode {
		// A text may have any bytes, as in Go.
		mode, err := cbor.DecOptions{ExtraReturnErrors: extra, UTF8: cbor.UTF8DecodeInvalid}.DecMode()
		if err != nil {
			panic(err)
		}
		return mode
	}
	return encoding, decoder(cbor.ExtraDecErrorUnknownField), decoder(cbor.ExtraDecErrorNone)
}

// Marshal encodes a value.
func Marshal(v any) ([]byte, error) { return encoding.Marshal(v) }

// Unmarshal decodes one value from data, which may be any bytes. Fields that the value does not have are ignored.
func Unmarshal(data []byte, v any) error { return lenient.Unmarshal(data, v) }

// UnmarshalStrict is Unmarshal that refuses fields that the value does not have.
func UnmarshalStrict(data []byte, v any) error { return strict.Unmarshal(data, v) }
