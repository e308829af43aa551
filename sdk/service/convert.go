package service

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/sdk/convert"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
)

// ToProto converts a service to its message. It fails if a config contains a value that JSON cannot represent.
func (s Service) ToProto() (*servicev1.Service, error) {
	var m servicev1.Service
	return &m, toProto(s, &m)
}

// FromProto converts a message to a service; nil is the empty service.
func FromProto(m *servicev1.Service) (Service, error) {
	var s Service
	err := fromProto(m, &s)
	return s, err
}

// ToProto converts a Consul to its message.
func (c Consul) ToProto() *servicev1.Consul { return convert.To[servicev1.Consul](c) }

// ConsulFromProto converts a message to a Consul.
func ConsulFromProto(m *servicev1.Consul) Consul { return convert.From[Consul](m) }

func toProto(v any, m proto.Message) error {
	text, err := json.Marshal(v)
	if err == nil {
		err = protojson.Unmarshal(text, m)
	}
	if err != nil {
		return fmt.Errorf("convert %T: %w", v, err)
	}
	return nil
}

func fromProto(m proto.Message, v any) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("convert %T: %w", m, err)
	}
	return nil
}
