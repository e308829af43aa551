module github.com/kubernetes-csi/drivers

go 1.26.8

require (
	github.com/container-storage-interface/spec v1.0.0
	github.com/golang/glog v1.2.5
	github.com/golang/protobuf v1.5.4
	github.com/kubernetes-csi/csi-lib-utils v0.2.0
	github.com/pborman/uuid v1.2.1
	golang.org/x/net v0.62.0
	google.golang.org/grpc v1.85.0
	k8s.io/kubernetes v1.12.0
	k8s.io/utils v0.0.0-20261023123148-ca04ba58ecab
)

require (
	github.com/google/uuid v1.6.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	k8s.io/apimachinery v0.37.2 // indirect
)
