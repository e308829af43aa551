package conformance

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
)

// invokeEmpty calls a method with nothing but the backend.
func invokeEmpty(ctx context.Context, conn grpc.ClientConnInterface, m protoreflect.MethodDescriptor, at backend) error {
	req, err := newMessage(m.Input())
	if err != nil {
		return err
	}
	res, err := newMessage(m.Output())
	if err != nil {
		return err
	}
	if f := m.Input().Fields().ByName("consul"); f != nil {
		req.Set(f, protoreflect.ValueOfMessage(at.consul.ToProto().ProtoReflect()))
	}
	if f := m.Input().Fields().ByName("driver"); f != nil {
		driver := &storagev1.Driver{Id: at.driver.ID, Endpoint: at.driver.Endpoint}
		req.Set(f, protoreflect.ValueOfMessage(driver.ProtoReflect()))
	}
	path := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingServer() {
		return conn.Invoke(ctx, path, req.Interface(), res.Interface())
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(req.Interface()); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		if err := stream.RecvMsg(res.Interface()); err != nil {
			return err // also at its end: a stream has one
		}
		proto.Reset(res.Interface())
	}
}

func newMessage(d protoreflect.MessageDescriptor) (protoreflect.Message, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return nil, fmt.Errorf("make a %s: %w", d.FullName(), err)
	}
	return t.New(), nil
}
