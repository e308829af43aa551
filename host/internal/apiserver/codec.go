package apiserver

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// strictJSON is connect's JSON codec, but for unknown keys: they are an error, as
// in a specification. A key that is misspelt would be a volume mounted read-write.
// Programs use protobuf, in which newer clients may say more than we know.
type strictJSON struct{}

// Name is what content types call it: application/json and application/connect+json.
func (strictJSON) Name() string { return "json" }

func (strictJSON) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no protobuf message", message)
	}
	return protojson.Marshal(m)
}

func (strictJSON) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no protobuf message", message)
	}
	return protojson.Unmarshal(data, m)
}
