package service

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

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
func (c Consul) ToProto() *servicev1.Consul {
	return &servicev1.Consul{
		Name: c.Name, Address: c.Address, TokenFile: c.TokenFile,
		CaFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, TlsServerName: c.TLSServerName,
		GrpcAddress: c.GRPCAddress, GrpcCaFile: c.GRPCCAFile,
		Datacenter: c.Datacenter, Namespace: c.Namespace, Partition: c.Partition, AuthMethod: c.AuthMethod,
	}
}

// ConsulFromProto converts a message to a Consul.
func ConsulFromProto(m *servicev1.Consul) Consul {
	return Consul{
		Name: m.GetName(), Address: m.GetAddress(), TokenFile: m.GetTokenFile(),
		CAFile: m.GetCaFile(), CertFile: m.GetCertFile(), KeyFile: m.GetKeyFile(), TLSServerName: m.GetTlsServerName(),
		GRPCAddress: m.GetGrpcAddress(), GRPCCAFile: m.GetGrpcCaFile(),
		Datacenter: m.GetDatacenter(), Namespace: m.GetNamespace(), Partition: m.GetPartition(),
		AuthMethod: m.GetAuthMethod(),
	}
}

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
