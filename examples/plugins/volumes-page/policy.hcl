namespace "*" {
  capabilities = ["csi-list-volume"]
}
