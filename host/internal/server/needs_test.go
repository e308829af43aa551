package server

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	hostv1 "github.com/pannier/pannier/host/api/proto/pannier/host/v1"
)

// procedures are all calls of the API, as the protobuf files have them.
func procedures() map[string]protoreflect.MethodDescriptor {
	all := map[string]protoreflect.MethodDescriptor{}
	of := hostv1.File_pannier_host_v1_volume_proto.Package()
	protoregistry.GlobalFiles.RangeFilesByPackage(of, func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				all["/"+string(service.FullName())+"/"+string(method.Name())] = method
			}
		}
		return true
	})
	return all
}

func TestEveryCallHasItsNeed(t *testing.T) {
	all := procedures()
	for procedure := range all {
		if _, known := needs[procedure]; !known {
			t.Errorf("%s has no entry in needs.go", procedure)
		}
	}
	for procedure := range needs {
		if all[procedure] == nil {
			t.Errorf("%s has an entry in needs.go, and there is no such call", procedure)
		}
	}
	if n := needOf("/pannier.host.v1.NewService/New"); !n.changes || n.check(&caller{}, nil) == nil {
		t.Error("a call that nobody has thought about is open")
	}
}
