// Package nomad tests the plugin nomad-api with a client that was not written here, Nomad's own Go client (package
// github.com/hashicorp/nomad/api), as Nomad's command line and its Terraform provider use it: a real agent with a real
// CSI driver and the plugin's own process.
package nomad
