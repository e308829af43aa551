package envoy

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
)

// validate checks m by the rules of Envoy's API, and every message that is packed into
// it. InvalidArgument names the fields; it has no value of theirs.
func validate(m proto.Message) error {
	if err := validateOne(m); err != nil {
		return err
	}
	return protorange.Range(m.ProtoReflect(), func(at protopath.Values) error {
		if last := at.Index(-1); last.Step.Kind() == protopath.AnyExpandStep {
			return validateOne(last.Value.Message().Interface())
		}
		return nil
	})
}

func validateOne(m proto.Message) error {
	v, ok := m.(interface{ ValidateAll() error })
	if !ok {
		return nil
	}
	if err := v.ValidateAll(); err != nil {
		return status.Errorf(codes.InvalidArgument, "Envoy would refuse it: %v", err)
	}
	return nil
}
