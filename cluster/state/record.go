package state

import (
	"encoding/json"
	"errors"
	"fmt"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// recordVersion is that of the records that this program writes.
const recordVersion = 1

// ErrNewerRecord says that the ledger was written by a newer version of the program.
var ErrNewerRecord = errors.New("record was written by a newer version")

type record[T any] struct {
	Version int `json:"v"`
	Record  T   `json:"r"`
}

func encode[T any](v T) ([]byte, error) {
	return json.Marshal(record[T]{recordVersion, v})
}

func decode[T any](data []byte) (T, error) { return decodeBy[T](data, jsonv1.DefaultOptionsV1()) }

// decodePart reads some fields of a record. It takes their names as they are: encoding/json, which
// takes them in any case, looks longer at each field that is passed over.
func decodePart[T any](data []byte) (T, error) {
	return decodeBy[T](data, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

func decodeBy[T any](data []byte, options ...jsonv2.Options) (T, error) {
	var r record[T]
	if err := jsonv2.Unmarshal(data, &r, options...); err != nil {
		return r.Record, fmt.Errorf("read a record: %w", err)
	}
	if r.Version > recordVersion {
		return r.Record, fmt.Errorf("%w: version %d, this program knows up to %d", ErrNewerRecord, r.Version, recordVersion)
	}
	return r.Record, nil
}

// storeError is a failure of the store itself. It tells a rule's refusal, which
// every server comes to, from a fault, which only this one has.
type storeError struct{ err error }

func (e *storeError) Error() string { return "ledger's store: " + e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

func fault(format string, args ...any) error {
	return &storeError{fmt.Errorf(format, args...)}
}

func isFault(err error) bool {
	var e *storeError
	return errors.As(err, &e)
}
