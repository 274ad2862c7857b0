//! The table of all names of libibverbs, with their versions and the function behind each.
//!
//! Each name is a jump to its function. A name of an old version, whose types differ, is a stub: no program that runs on a kernel of
//! the last fifteen years asks for one. The private names serve drivers of libibverbs. Programs are linked with libraries of drivers, so
//! the names must be there, but nobody calls them.

#![allow(unsafe_code)]

use crate::calls::{
    address, channel, context, cq, device, events, memory, pd, port, qp, srq, stubs,
};
use crate::{rates, text};

/// Exports a function under a name and version, and with the further lines of assembler.
#[cfg(all(target_arch = "x86_64", not(test)))]
macro_rules! export {
    ($label:literal, $name:ident, $version:expr, $function:path $(, $line:expr)*) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.hw_", $label, stringify!($name), ",\"ax\",@progbits"),
            concat!(".globl hw_", $label, stringify!($name)),
            concat!(".type hw_", $label, stringify!($name), ",@function"),
            concat!("hw_", $label, stringify!($name), ":"),
            "jmp {function}",
            concat!(".size hw_", $label, stringify!($name), ", . - hw_", $label, stringify!($name)),
            concat!(".symver hw_", $label, stringify!($name), ", ", stringify!($name), $version),
            $($line,)*
            ".popsection",
            function = sym $function,
        );
    };
}

/// Unit tests are a program of their own, which exports nothing.
#[cfg(not(all(target_arch = "x86_64", not(test))))]
macro_rules! export {
    ($label:literal, $name:ident, $version:expr, $function:path $(, $line:expr)*) => {
        const _: *const () = $function as *const ();
    };
}

/// Names in the version that programs are linked with today.
macro_rules! names {
    ($($version:literal { $($name:ident = $function:path;)* })*) => {
        $($(
            export!("", $name, concat!("@@", $version), $function);
        )*)*
    };
}

/// Names that share a function: `old` ones, in versions that programs are no longer linked with, and `private` ones.
macro_rules! stub_names {
    ($kind:ident $($version:literal { $($function:path { $($name:ident)* })* })*) => {
        $($(stub_names!(@each $kind $version $function { $($name)* });)*)*
    };
    (@each $kind:ident $version:literal $function:path { $($name:ident)* }) => {
        $(
            stub_names!(@one $kind $name $version $function);
        )*
    };
    (@one old $name:ident $version:literal $function:path) => {
        export!("old_", $name, concat!("@", $version), $function);
    };
    (@one private $name:ident $version:literal $function:path) => {
        export!(
            "", $name, concat!("@@", $version), $function,
            // The node's number is that of the release which last changed the interface of drivers.
            ".irp number,25,33,57,59,64,65",
            concat!(".symver hw_", stringify!($name), ", ", stringify!($name), "@IBVERBS_PRIVATE_\\number"),
            ".endr"
        );
    };
}

names! {
    "IBVERBS_1.0" {
        ibv_create_comp_channel = channel::create_comp_channel;
        ibv_destroy_comp_channel = channel::destroy_comp_channel;
        ibv_rate_to_mult = rates::rate_to_mult;
        mult_to_ibv_rate = rates::mult_to_rate;
        ibv_copy_path_rec_from_kern = stubs::nothing;
        ibv_copy_path_rec_to_kern = stubs::nothing;
        ibv_copy_qp_attr_from_kern = stubs::nothing;
        ibv_get_sysfs_path = stubs::sysfs_path;
        ibv_read_sysfs_file = stubs::minus_one;
    }
    "IBVERBS_1.1" {
        ibv_get_device_list = device::get_device_list;
        ibv_free_device_list = device::free_device_list;
        ibv_get_device_name = device::get_device_name;
        ibv_get_device_guid = device::get_device_guid;
        ibv_open_device = context::open_device;
        ibv_close_device = context::close_device;
        ibv_get_async_event = events::get_async_event;
        ibv_ack_async_event = events::ack_async_event;
        ibv_query_device = context::query_device;
        ibv_query_port = port::query_port;
        ibv_query_gid = port::query_gid;
        ibv_query_pkey = port::query_pkey;
        ibv_alloc_pd = pd::alloc_pd;
        ibv_dealloc_pd = pd::dealloc_pd;
        ibv_reg_mr = memory::reg_mr;
        ibv_rereg_mr = memory::rereg_mr;
        ibv_dereg_mr = memory::dereg_mr;
        ibv_create_cq = cq::create_cq;
        ibv_resize_cq = cq::resize_cq;
        ibv_destroy_cq = cq::destroy_cq;
        ibv_get_cq_event = channel::get_cq_event;
        ibv_ack_cq_events = channel::ack_cq_events;
        ibv_create_srq = srq::create_srq;
        ibv_modify_srq = srq::modify_srq;
        ibv_query_srq = srq::query_srq;
        ibv_destroy_srq = srq::destroy_srq;
        ibv_create_qp = qp::create_qp;
        ibv_query_qp = qp::query_qp;
        ibv_modify_qp = qp::modify_qp;
        ibv_destroy_qp = qp::destroy_qp;
        ibv_create_ah = address::create_ah;
        ibv_create_ah_from_wc = address::create_ah_from_wc;
        ibv_init_ah_from_wc = address::init_ah_from_wc;
        ibv_destroy_ah = address::destroy_ah;
        ibv_resolve_eth_l2_from_gid = address::resolve_eth_l2;
        ibv_attach_mcast = stubs::no_call;
        ibv_detach_mcast = stubs::no_call;
        ibv_fork_init = stubs::nothing;
        ibv_dontfork_range = stubs::nothing;
        ibv_dofork_range = stubs::nothing;
        ibv_node_type_str = text::node_type;
        ibv_port_state_str = text::port_state;
        ibv_event_type_str = text::event_type;
        ibv_wc_status_str = text::wc_status;
        ibv_rate_to_mbps = rates::rate_to_mbps;
        mbps_to_ibv_rate = rates::mbps_to_rate;
        ibv_copy_ah_attr_from_kern = stubs::nothing;
    }
    "IBVERBS_1.5" {
        ibv_get_pkey_index = port::get_pkey_index;
    }
    "IBVERBS_1.6" {
        ibv_qp_to_qp_ex = qp::qp_to_qp_ex;
    }
    "IBVERBS_1.7" {
        ibv_reg_mr_iova = memory::reg_mr_iova;
    }
    "IBVERBS_1.8" {
        ibv_reg_mr_iova2 = memory::reg_mr_iova2;
    }
    "IBVERBS_1.9" {
        ibv_get_device_index = device::get_device_index;
    }
    "IBVERBS_1.10" {
        ibv_import_device = stubs::no_object;
        ibv_import_mr = stubs::no_object;
        ibv_import_pd = stubs::no_object;
        ibv_unimport_mr = stubs::nothing;
        ibv_unimport_pd = stubs::nothing;
        ibv_query_ece = stubs::no_call;
        ibv_set_ece = stubs::no_call;
    }
    "IBVERBS_1.11" {
        _ibv_query_gid_ex = port::query_gid_ex;
        _ibv_query_gid_table = port::query_gid_table;
    }
    "IBVERBS_1.12" {
        ibv_reg_dmabuf_mr = stubs::no_object;
    }
    "IBVERBS_1.13" {
        ibv_import_dm = stubs::no_object;
        ibv_unimport_dm = stubs::nothing;
        ibv_is_fork_initialized = stubs::is_fork_initialized;
    }
    "IBVERBS_1.14" {
        ibv_query_qp_data_in_order = qp::data_in_order;
    }
    "IBVERBS_1.15" {
        ibv_alloc_dmah = stubs::no_object;
        ibv_dealloc_dmah = stubs::no_call;
        ibv_reg_mr_ex = stubs::no_object;
    }
    "IBVERBS_1.16" {
        ibv_dm_export_dmabuf_fd = stubs::minus_one;
        ibv_query_port_speed = stubs::no_call;
    }
    "IBVERBS_1.17" {
        ibv_alloc_buf = stubs::no_object;
        ibv_free_buf = stubs::no_call;
        ibv_reg_buf_mr = stubs::no_object;
    }
    "IBVERBS_1.18" {
        _ibv_query_comp_cntr_caps = stubs::no_call;
        ibv_create_comp_cntr = stubs::no_object;
        ibv_destroy_comp_cntr = stubs::no_call;
        ibv_export_buf_dmabuf_fd = stubs::minus_one;
        ibv_inc_comp_cntr = stubs::no_call;
        ibv_inc_err_comp_cntr = stubs::no_call;
        ibv_qp_attach_comp_cntr = stubs::no_call;
        ibv_read_comp_cntr = stubs::no_call;
        ibv_read_err_comp_cntr = stubs::no_call;
        ibv_set_comp_cntr = stubs::no_call;
        ibv_set_err_comp_cntr = stubs::no_call;
    }
}

stub_names! {
    old
    "IBVERBS_1.0" {
        stubs::no_object {
            ibv_get_device_list ibv_get_device_name ibv_open_device ibv_alloc_pd ibv_reg_mr ibv_create_cq ibv_create_srq
            ibv_create_qp ibv_create_ah
        }
        stubs::no_call {
            ibv_close_device ibv_query_device ibv_query_port ibv_dealloc_pd ibv_dereg_mr ibv_resize_cq ibv_destroy_cq
            ibv_modify_srq ibv_query_srq ibv_destroy_srq ibv_query_qp ibv_modify_qp ibv_destroy_qp ibv_destroy_ah
            ibv_attach_mcast ibv_detach_mcast
        }
        stubs::minus_one {
            ibv_get_async_event ibv_query_gid ibv_query_pkey ibv_get_cq_event
        }
        stubs::nothing {
            ibv_free_device_list ibv_get_device_guid ibv_ack_async_event ibv_ack_cq_events
        }
    }
    "IBVERBS_1.1" {
        stubs::nothing { ibv_register_driver }
    }
}

stub_names! {
    private
    "IBVERBS_PRIVATE_34" {
        port::query_gid_type { ibv_query_gid_type }
        stubs::nothing {
            __ioctl_final_num_attrs __verbs_log verbs_init_cq verbs_set_ops verbs_uninit_context
            verbs_register_driver_25 verbs_register_driver_33 verbs_register_driver_34 verbs_register_driver_57
            verbs_register_driver_59 verbs_register_driver_64 verbs_register_driver_65
            ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free
        }
        stubs::no_object {
            _verbs_init_and_alloc_context verbs_open_device ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init
            ibv_wr_opcode_str
        }
        stubs::minus_one {
            ibv_read_ibdev_sysfs_file
        }
        stubs::no_call {
            execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast
            ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex
            ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2
            ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw
            ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_counters ibv_cmd_destroy_cq
            ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table
            ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context
            ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq
            ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send
            ibv_cmd_post_srq_recv ibv_cmd_query_context ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port
            ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr
            ibv_cmd_reg_mr ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq
            ibv_cmd_alloc_dmah ibv_cmd_create_comp_cntr ibv_cmd_create_cq_ex2 ibv_cmd_destroy_comp_cntr
            ibv_cmd_export_dmabuf_fd ibv_cmd_free_dmah ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr
            ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_query_device ibv_cmd_query_device_ex
            ibv_cmd_query_port_speed ibv_cmd_read_comp_cntr ibv_cmd_read_err_comp_cntr ibv_cmd_reg_mr_ex
            ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr
        }
    }
}

// The one variable among the names: librdmacm writes to it.
#[cfg(all(target_arch = "x86_64", not(test)))]
core::arch::global_asm!(
    ".pushsection .bss.hw_allow_disassociate,\"aw\",@nobits",
    ".globl hw_allow_disassociate",
    ".type hw_allow_disassociate,@object",
    "hw_allow_disassociate:",
    ".zero 1",
    ".size hw_allow_disassociate, 1",
    ".symver hw_allow_disassociate, verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34",
    ".irp number,25,33,57,59,64,65",
    ".symver hw_allow_disassociate, verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_\\number",
    ".endr",
    ".popsection",
);
