#!/bin/bash
# The pod network of a node: point-to-point links from the node's own podCIDR, and routes to the
# other nodes' podCIDRs, looked up anew every few seconds.
export KUBECONFIG=/etc/kubernetes/kubelet.conf
readonly me=$(hostname) conflist=/etc/cni/net.d/10-ptp.conflist

nodes() { # name podCIDR address, one node a line
  kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}' 2>/dev/null
}

write_conflist() { # write_conflist PODCIDR
  cat >"$conflist.new" <<CONFLIST
{"cniVersion": "0.4.0", "name": "ptp", "plugins": [
  {"type": "ptp", "ipMasq": false, "mtu": 1500,
   "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam",
            "ranges": [[{"subnet": "$1"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CONFLIST
  mv "$conflist.new" "$conflist"
}

while true; do
  while read -r name cidr address _; do
    [ -n "$address" ] || continue
    if [ "$name" != "$me" ]; then
      ip route replace "$cidr" via "$address"
    elif ! grep -qF "\"$cidr\"" "$conflist" 2>/dev/null; then # also of a Node that was made anew
      write_conflist "$cidr"
    fi
  done < <(nodes)
  [ -s "$conflist" ] && sleep 5 || sleep 1
done
